"""Never give an outbox id again on SQLite; PostgreSQL's sequences never did."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table anew with AUTOINCREMENT; pending messages keep their ids and their order."""
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table(
            "outbox", recreate="always", table_kwargs={"sqlite_autoincrement": True}
        ) as _:
            pass


def downgrade() -> None:
    """Undo `upgrade`."""
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table(
            "outbox", recreate="always", table_kwargs={"sqlite_autoincrement": False}
        ) as _:
            pass
