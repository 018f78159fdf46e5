"""The trace path: publisher, transports, tensor store, consumers."""
