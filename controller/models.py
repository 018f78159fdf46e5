"""Tables of the controller's database.

The database is the truth about tenants and decisions; what other processes need of it leaves through the
outbox. Messages that arrived on the log are kept as their own bytes, so nothing is translated twice.
"""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAME_LENGTH = 64


class VersionStatus(enum.StrEnum):
    """Where an adapter version stands in its life."""

    CANDIDATE = "candidate"
    """Published, not in service."""
    CHAMPION = "champion"
    RETIRED = "retired"
    """Was champion until a newer one took over; what a rollback returns to."""
    ROLLED_BACK = "rolled_back"
    """Was champion and did worse than turbo, or an operator took it back."""
    REFUSED = "refused"
    """An engine could not load it."""


class DecisionKind(enum.StrEnum):
    """What a decision did."""

    CREATE = "create"
    PROMOTE = "promote"
    HOLD = "hold"
    ROLLBACK = "rollback"
    REFUSE = "refuse"
    CONFIGURE = "configure"


class Base(DeclarativeBase):
    """Declarative base of every table."""


class Tenant(Base):
    """One customer: its account and the policy in force for it."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    created_at: Mapped[float]
    state: Mapped[str] = mapped_column(String(16))
    learn: Mapped[bool]
    share: Mapped[bool]
    freeze: Mapped[bool]
    pin: Mapped[int | None]
    """Version that must serve whatever the policy finds; 0 is turbo."""
    weight: Mapped[float]
    max_lookahead: Mapped[int]
    control_share: Mapped[float]
    off_share: Mapped[float]
    revision: Mapped[int]
    """Of the last TenantChanged."""
    policy_version: Mapped[int]
    """Of the last PolicyDecided."""
    decided_at: Mapped[float]
    champion: Mapped[int | None]
    champion_since: Mapped[float]
    """Unix seconds since when `champion` (or turbo) serves; the live comparison starts here."""


class Key(Base):
    """One API key of a tenant; the key itself is never stored."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    prefix: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]


class Version(Base):
    """One adapter version a learner published."""

    __tablename__ = "versions"

    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str]
    """Why it has this status."""
    received_at: Mapped[float]
    promoted_at: Mapped[float | None]
    published: Mapped[bytes] = mapped_column(LargeBinary)
    """DrafterPublished, as it was on the log."""


class Decision(Base):
    """One decision and why it was taken."""

    __tablename__ = "decisions"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    decided_at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(16))
    actor: Mapped[str] = mapped_column(String(16))
    """`admin`, `policy`, or `engine` for a refusal."""
    version: Mapped[int | None]
    """Version the decision is about; None is turbo."""
    champion: Mapped[int | None]
    """Version that serves afterwards; None is turbo."""
    policy_version: Mapped[int]
    """Policy in force afterwards."""
    reason: Mapped[str]
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON)


class OutboxMessage(Base):
    """A message that must reach the log, written in the transaction that caused it."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(primary_key=True)
    topic: Mapped[str] = mapped_column(String(128))
    key: Mapped[str] = mapped_column(String(NAME_LENGTH))
    value: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[float]


class Engine(Base):
    """The newest report of one engine."""

    __tablename__ = "engines"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    started_at: Mapped[float]
    reported_at: Mapped[float]
    received_at: Mapped[float]
    telemetry: Mapped[bytes] = mapped_column(LargeBinary)
    """EngineTelemetry, as it was on the log."""


class CounterColumns:
    """Counts of one arm; see `adaptive.contracts.ArmCounters`."""

    requests: Mapped[int]
    verify_steps: Mapped[int]
    drafted: Mapped[int]
    accepted: Mapped[int]
    accepted_per_position: Mapped[list[int]] = mapped_column(JSON)
    emitted: Mapped[int]
    engine_seconds: Mapped[float]


class ArmTotal(CounterColumns, Base):
    """Counts of one arm over all engines and their restarts."""

    __tablename__ = "arm_totals"

    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    arm: Mapped[str] = mapped_column(String(16), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class ArmSample(CounterColumns, Base):
    """Counts of one arm on one engine within one time bucket."""

    __tablename__ = "arm_samples"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    arm: Mapped[str] = mapped_column(String(16))
    version: Mapped[int]
    engine: Mapped[str] = mapped_column(String(128))
    bucket: Mapped[int]
    """Unix seconds at which the bucket starts."""

    __table_args__ = (
        UniqueConstraint("tenant", "arm", "version", "bucket", "engine", name="uq_arm_samples_bucket"),
        Index("ix_arm_samples_bucket", "bucket"),
    )
