"""Tables of the controller's database.

The database is the truth about tenants and decisions; what other processes need of it leaves through the
outbox. Messages that arrived on the log are kept as their own bytes, so nothing is translated twice.
"""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    event,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from controller.names import KeyScope

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
    ERASED = "erased"
    """Was derived from the data of a tenant that was erased."""
    DELETED = "deleted"
    """An operator deleted its bytes; the number stays taken, so that a repeated message revives nothing."""


class DecisionKind(enum.StrEnum):
    """What a decision did."""

    CREATE = "create"
    PROMOTE = "promote"
    HOLD = "hold"
    ROLLBACK = "rollback"
    REFUSE = "refuse"
    CONFIGURE = "configure"
    ROLLOUT = "rollout"
    """A version went on to the next stage of its rollout."""
    ABORT = "abort"
    """A rollout ended before its version became champion."""
    DRIFT = "drift"
    """An arm's acceptance length changed: the traffic did, or the target."""
    ALERT = "alert"
    """An engine became slower by itself: no drafter is to blame."""


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
    generation: Mapped[int] = mapped_column(default=0)
    """How many tenants of this name were erased before it."""
    learned: Mapped[bool] = mapped_column(default=False)
    """Whether `learn` was ever on: then learners hold data of it."""
    retention_seconds: Mapped[float | None] = mapped_column(default=None)
    retention_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    requests_per_minute: Mapped[int | None] = mapped_column(BigInteger, default=None)
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger, default=None)
    concurrent_requests: Mapped[int | None] = mapped_column(BigInteger, default=None)
    edition: Mapped[int] = mapped_column()
    """Counts every change of the row; what the entity tag is made of."""

    # A change of a row that somebody else has changed since it was read fails instead of undoing theirs.
    __mapper_args__ = {"version_id_col": edition}  # noqa: RUF012  as SQLAlchemy reads it


class Key(Base):
    """One API key of a tenant; the key itself is never stored."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    prefix: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]
    scope: Mapped[str] = mapped_column(String(16), default=KeyScope.INFERENCE)
    expires_at: Mapped[float | None] = mapped_column(default=None)
    """When a key that was rotated is revoked."""


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
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
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

    __table_args__ = (Index("ix_decisions_tenant_id", "tenant", "id"),)


class DecisionCount(Base):
    """How many decisions of a kind were ever taken, those of erased tenants included."""

    __tablename__ = "decision_counts"

    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    taken: Mapped[int] = mapped_column(BigInteger)


@event.listens_for(Decision, "after_insert")
def _count_decision(_mapper: object, connection: Connection, decision: Decision) -> None:
    """Count in the same transaction: counting a million rows for every scrape would be slow."""
    insert = sqlite_insert if connection.dialect.name == "sqlite" else postgresql_insert
    statement = insert(DecisionCount).values(kind=decision.kind, taken=1)
    more = {"taken": DecisionCount.taken + 1}
    connection.execute(statement.on_conflict_do_update(index_elements=[DecisionCount.kind], set_=more))


class OutboxMessage(Base):
    """A message that must reach the log, written in the transaction that caused it."""

    __tablename__ = "outbox"
    # SQLite gives the ids of deleted rows again. The relay deletes by id what it has sent, and must not hit a
    # message that was added after an erasure deleted the one it read.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012  as SQLAlchemy reads it

    id: Mapped[int] = mapped_column(primary_key=True)
    topic: Mapped[str] = mapped_column(String(128))
    key: Mapped[str] = mapped_column(String(NAME_LENGTH))
    value: Mapped[bytes | None] = mapped_column(LargeBinary)
    """None is a tombstone."""
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


class Erasure(Base):
    """The erasure of a tenant: how far it is, and afterwards the record that it happened. No content."""

    __tablename__ = "erasures"

    id: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(NAME_LENGTH), index=True)
    generation: Mapped[int]
    step: Mapped[str] = mapped_column(String(16))
    waiting: Mapped[str] = mapped_column(Text)
    """What the step waits for; empty while it goes on."""
    requested_by: Mapped[str] = mapped_column(String(16))
    requested_at: Mapped[float]
    updated_at: Mapped[float]
    finished_at: Mapped[float | None]
    kafka_gone_by: Mapped[float | None]
    """Unix seconds; None where the log removed the bytes at once."""
    learned: Mapped[bool]
    """Whether learners hold data of the tenant, so that their word is waited for."""
    last_version: Mapped[int]
    policy_version: Mapped[int]
    revision: Mapped[int]
    removed: Mapped[dict[str, int]] = mapped_column(JSON)
    """Place -> how many were removed there by the controller."""
    retired: Mapped[list[str]] = mapped_column(JSON)
    """Names of the drafters taken out of use."""
    derived: Mapped[bytes] = mapped_column(LargeBinary)
    """AdapterReferences of other tenants' versions among them (msgpack)."""
    acknowledged: Mapped[dict[str, dict[str, Any]]] = mapped_column(JSON)
    """Process -> done, waiting, at, removed."""


class CounterColumns:
    """Counts of one arm; see `adaptive.contracts.ArmCounters`."""

    requests: Mapped[int] = mapped_column(BigInteger)
    verify_steps: Mapped[int] = mapped_column(BigInteger)
    drafted: Mapped[int] = mapped_column(BigInteger)
    accepted: Mapped[int] = mapped_column(BigInteger)
    accepted_per_position: Mapped[list[int]] = mapped_column(JSON)
    emitted: Mapped[int] = mapped_column(BigInteger)
    engine_seconds: Mapped[float]
    verify_steps_by_context: Mapped[list[int]] = mapped_column(JSON, default=list)
    accepted_by_context: Mapped[list[int]] = mapped_column(JSON, default=list)


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
    bucket: Mapped[int] = mapped_column(BigInteger)
    """Unix seconds at which the bucket starts."""

    __table_args__ = (
        UniqueConstraint("tenant", "arm", "version", "bucket", "engine", name="uq_arm_samples_bucket"),
        Index("ix_arm_samples_bucket", "bucket"),
        Index("ix_arm_samples_tenant_bucket", "tenant", "bucket"),
    )


class ArmHistory(CounterColumns, Base):
    """Counts of one arm over all engines within one wide time bucket, kept longer than the samples."""

    __tablename__ = "arm_history"

    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    bucket: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Unix seconds at which the bucket starts."""
    arm: Mapped[str] = mapped_column(String(16), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)

    __table_args__ = (Index("ix_arm_history_bucket", "bucket"),)


class AuditEntry(Base):
    """Who changed what; it stays when the tenant is erased, and holds no content and no key."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    actor: Mapped[str] = mapped_column(String(NAME_LENGTH))
    """`admin`, or the id of a tenant's key."""
    scope: Mapped[str] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(128))
    """Method and route."""
    tenant: Mapped[str | None] = mapped_column(String(NAME_LENGTH))
    request_id: Mapped[str] = mapped_column(String(NAME_LENGTH))
    details: Mapped[dict[str, Any]] = mapped_column(JSON)

    __table_args__ = (Index("ix_audit_tenant_id", "tenant", "id"),)


class Answer(Base):
    """What a request with an Idempotency-Key was answered, written in the transaction of its change."""

    __tablename__ = "answers"

    owner: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    """SHA-256 (hex) of method, path and body."""
    tenant: Mapped[str | None] = mapped_column(String(NAME_LENGTH), index=True)
    status: Mapped[int]
    headers: Mapped[dict[str, str]] = mapped_column(JSON)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[float] = mapped_column(index=True)


class Lease(Base):
    """Which controller acts; see `controller.lease`."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    holder: Mapped[str] = mapped_column(String(128))
    """Empty: given back."""
    term: Mapped[int] = mapped_column(BigInteger)
    """Counts the holders: a fence for writes of former ones."""
    beat: Mapped[int] = mapped_column(BigInteger)
    """Counts the holder's signs of life."""


class Rollout(Base):
    """A version on its way into service, and afterwards how that ended."""

    __tablename__ = "rollouts"

    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stage: Mapped[str] = mapped_column(String(16))
    """`shadow`, `canary`, `champion` or `aborted`."""
    share: Mapped[float]
    """Of the tenant's requests, in the canary stage."""
    started_at: Mapped[float]
    stage_since: Mapped[float]
    reason: Mapped[str]
    """Why it is in this stage."""
    shadow: Mapped[dict[str, Any]] = mapped_column(JSON)
    """`controller.trial.Shadow` as plain numbers."""
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The newest comparison with what serves."""


class TenantWeights(Base):
    """Weights over a tenant's arms, from scores of every arm on its traces."""

    __tablename__ = "tenant_weights"

    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    updated_at: Mapped[float]
    state: Mapped[dict[str, Any]] = mapped_column(JSON)
    """`controller.hedge.HedgeState` as plain numbers."""


class EngineSpeed(Base):
    """How fast an engine's steps are against its own past, and since when they are not."""

    __tablename__ = "engine_speeds"

    engine: Mapped[str] = mapped_column(String(128), primary_key=True)
    started_at: Mapped[float]
    """Of the run of the engine that the numbers are about."""
    baseline: Mapped[float]
    """Seconds of a step, as usual."""
    slow: Mapped[int]
    """Reports in a row that were slow (positive) or not (negative)."""
    ratio: Mapped[float]
    """The newest report's seconds over the baseline's."""
    alert_since: Mapped[float | None]
    """Unix seconds; None while the engine is as fast as usual."""
