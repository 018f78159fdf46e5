"""Create tenants, keys, versions, decisions, the outbox, engines and arm counters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _counters() -> list[sa.Column[object]]:
    return [
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("verify_steps", sa.Integer(), nullable=False),
        sa.Column("drafted", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("accepted_per_position", sa.JSON(), nullable=False),
        sa.Column("emitted", sa.Integer(), nullable=False),
        sa.Column("engine_seconds", sa.Double(), nullable=False),
    ]


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("learn", sa.Boolean(), nullable=False),
        sa.Column("share", sa.Boolean(), nullable=False),
        sa.Column("freeze", sa.Boolean(), nullable=False),
        sa.Column("pin", sa.Integer(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("max_lookahead", sa.Integer(), nullable=False),
        sa.Column("control_share", sa.Double(), nullable=False),
        sa.Column("off_share", sa.Double(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
        sa.Column("champion", sa.Integer(), nullable=True),
        sa.Column("champion_since", sa.Double(), nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
    )
    op.create_index("ix_keys_tenant", "keys", ["tenant"])
    op.create_table(
        "versions",
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("promoted_at", sa.Double(), nullable=True),
        sa.Column("published", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("champion", sa.Integer(), nullable=True),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
    )
    op.create_index("ix_decisions_tenant", "decisions", ["tenant"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("topic", sa.String(128), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "engines",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("telemetry", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "arm_totals",
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("arm", sa.String(16), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        *_counters(),
    )
    op.create_table(
        "arm_samples",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("arm", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(128), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        *_counters(),
        sa.UniqueConstraint("tenant", "arm", "version", "bucket", "engine", name="uq_arm_samples_bucket"),
    )
    op.create_index("ix_arm_samples_bucket", "arm_samples", ["bucket"])


def downgrade() -> None:
    """Drop every table."""
    for table in (
        "arm_samples",
        "arm_totals",
        "engines",
        "outbox",
        "decisions",
        "versions",
        "keys",
        "tenants",
    ):
        op.drop_table(table)
