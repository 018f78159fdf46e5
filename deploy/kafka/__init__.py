"""One Apache Kafka broker (KRaft) on loopback, for tests and small set-ups."""
