"""Kafka as the log, by kafka-python: idempotent producer, cooperative groups, TLS and SASL."""
