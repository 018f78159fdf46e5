"""Count by context length, keep a coarse time series for a month, and let counts pass 2^31 on PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COUNTED = ("arm_totals", "arm_samples")
_BY_CONTEXT = ("verify_steps_by_context", "accepted_by_context")
_WIDE = ("requests", "verify_steps", "drafted", "accepted", "emitted")


def upgrade() -> None:
    """Counts of before have no context lengths."""
    for table in _COUNTED:  # nothing refers to them, so SQLite may make them anew
        with op.batch_alter_table(table) as batch:
            for column in _BY_CONTEXT:
                batch.add_column(sa.Column(column, sa.JSON(), nullable=False, server_default="[]"))
            for column in (*_WIDE, *(["bucket"] if table == "arm_samples" else [])):
                batch.alter_column(column, existing_type=sa.Integer(), type_=sa.BigInteger())
    op.create_table(
        "arm_history",
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("bucket", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("arm", sa.String(16), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        *(sa.Column(column, sa.BigInteger(), nullable=False) for column in _WIDE),
        sa.Column("accepted_per_position", sa.JSON(), nullable=False),
        sa.Column("engine_seconds", sa.Double(), nullable=False),
        *(sa.Column(column, sa.JSON(), nullable=False, server_default="[]") for column in _BY_CONTEXT),
    )
    op.create_index("ix_arm_history_bucket", "arm_history", ["bucket"])
    # Reads of a series name the tenant and a stretch of time, not the arm.
    op.create_index("ix_arm_samples_tenant_bucket", "arm_samples", ["tenant", "bucket"])


def downgrade() -> None:
    """Undo `upgrade`; wide counts stay wide."""
    op.drop_index("ix_arm_samples_tenant_bucket", "arm_samples")
    op.drop_table("arm_history")
    for table in _COUNTED:
        with op.batch_alter_table(table) as batch:
            for column in _BY_CONTEXT:
                batch.drop_column(column)
