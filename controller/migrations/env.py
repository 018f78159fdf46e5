"""Alembic environment: runs on the connection that `controller.database` passes in."""

from __future__ import annotations

from alembic import context

from controller.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
