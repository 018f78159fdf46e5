"""Alembic migrations of the controller's database, shipped with the package."""
