"""Add quotas to tenants."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")


def upgrade() -> None:
    """Tenants of before have no limits."""
    with op.batch_alter_table("tenants") as tenants:
        for column in _COLUMNS:
            tenants.add_column(sa.Column(column, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Undo `upgrade`."""
    for column in _COLUMNS:
        op.drop_column("tenants", column)
