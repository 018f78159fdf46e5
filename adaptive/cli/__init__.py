"""The `adaptive` command."""
