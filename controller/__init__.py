"""Admin API, state and policy."""
