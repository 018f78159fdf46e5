"""End-to-end tests of the dashboard."""
