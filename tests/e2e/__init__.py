"""End-to-end tests: the whole service."""
