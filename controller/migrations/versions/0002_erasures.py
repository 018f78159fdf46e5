"""Add erasures, generations and retention of tenants; let the outbox carry tombstones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of erasures and widen tenants and outbox."""
    op.create_table(
        "erasures",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False, index=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("step", sa.String(16), nullable=False),
        sa.Column("waiting", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.String(16), nullable=False),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("kafka_gone_by", sa.Double(), nullable=True),
        sa.Column("learned", sa.Boolean(), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("removed", sa.JSON(), nullable=False),
        sa.Column("retired", sa.JSON(), nullable=False),
        sa.Column("derived", sa.LargeBinary(), nullable=False),
        sa.Column("acknowledged", sa.JSON(), nullable=False),
    )
    # Not in a batch: that would make the table anew, which other tables refer to.
    op.add_column("tenants", sa.Column("generation", sa.Integer(), nullable=False, server_default="0"))
    # Whether `learn` was ever on is not known of tenants made before.
    op.add_column("tenants", sa.Column("learned", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("tenants", sa.Column("retention_seconds", sa.Double(), nullable=True))
    op.add_column("tenants", sa.Column("retention_bytes", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("outbox") as outbox:
        outbox.alter_column("value", existing_type=sa.LargeBinary(), nullable=True)


def downgrade() -> None:
    """Undo `upgrade`; tombstones that wait are lost."""
    op.execute("DELETE FROM outbox WHERE value IS NULL")
    with op.batch_alter_table("outbox") as outbox:
        outbox.alter_column("value", existing_type=sa.LargeBinary(), nullable=False)
    for column in ("generation", "learned", "retention_seconds", "retention_bytes"):
        op.drop_column("tenants", column)
    op.drop_table("erasures")
