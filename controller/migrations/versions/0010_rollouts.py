"""Rollouts, weights over arms, and engines' speeds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "rollouts",
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("share", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("stage_since", sa.Double, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("shadow", sa.JSON, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
    )
    op.create_table(
        "tenant_weights",
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("state", sa.JSON, nullable=False),
    )
    op.create_table(
        "engine_speeds",
        sa.Column("engine", sa.String(128), primary_key=True),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("baseline", sa.Double, nullable=False),
        sa.Column("slow", sa.Integer, nullable=False),
        sa.Column("ratio", sa.Double, nullable=False),
        sa.Column("alert_since", sa.Double),
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("engine_speeds", "tenant_weights", "rollouts"):
        op.drop_table(table)
