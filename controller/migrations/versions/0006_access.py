"""Scopes and expiry of keys, editions of tenants, the audit log, answers kept for repeated requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keys of before open the endpoint only."""
    op.add_column("keys", sa.Column("scope", sa.String(16), nullable=False, server_default="inference"))
    op.add_column("keys", sa.Column("expires_at", sa.Double(), nullable=True))
    op.add_column("tenants", sa.Column("edition", sa.Integer(), nullable=False, server_default="1"))
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("action", sa.String(128), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=True),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
    )
    op.create_index("ix_audit_tenant_id", "audit", ["tenant", "id"])
    op.create_table(
        "answers",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=True, index=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False, index=True),
    )
    op.create_table(
        "decision_counts",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("taken", sa.BigInteger(), nullable=False),
    )
    op.execute("INSERT INTO decision_counts (kind, taken) SELECT kind, count(*) FROM decisions GROUP BY kind")
    # Pages of one tenant's decisions come in the order of ids.
    op.create_index("ix_decisions_tenant_id", "decisions", ["tenant", "id"])
    op.drop_index("ix_decisions_tenant", "decisions")
    op.create_table(
        "leases",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    """Undo `upgrade`; keys of the API would open the endpoint, so they go."""
    op.drop_table("leases")
    op.create_index("ix_decisions_tenant", "decisions", ["tenant"])
    op.drop_index("ix_decisions_tenant_id", "decisions")
    op.drop_table("decision_counts")
    op.drop_table("answers")
    op.drop_table("audit")
    op.drop_column("tenants", "edition")
    op.execute("DELETE FROM keys WHERE scope <> 'inference'")
    op.drop_column("keys", "expires_at")
    op.drop_column("keys", "scope")
