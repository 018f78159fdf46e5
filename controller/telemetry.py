"""From engines' running totals to what happened per tenant and time bucket.

Engines report totals since their start, so a lost report costs nothing and a repeated one counts once: what
is added is the difference to the last report of the same run of the same engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, select

from adaptive.contracts import ArmCounters, EngineTelemetry, decode, encode
from controller.models import ArmHistory, ArmSample, ArmTotal, CounterColumns, Engine, Tenant
from controller.policy import Sample

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

BUCKET_SECONDS: Final = 5
SAMPLE_RETENTION_SECONDS: Final = 86_400.0
HISTORY_BUCKET_SECONDS: Final = 300
HISTORY_RETENTION_SECONDS: Final = 31 * 86_400.0

ArmKey = tuple[str, str, int]
"""Tenant, arm, version."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An engine could not apply a tenant's policy."""

    engine: str
    tenant: str
    policy_version: int | None
    """None where the engine does not say which policy it refused."""
    acknowledged: int
    """Newest policy of the tenant the engine did apply; 0 is none."""
    reported_at: float
    reason: str


def record_telemetry(session: Session, report: EngineTelemetry, received_at: float) -> list[Refusal]:
    """Add what is new in a report to the totals and the time series.

    Reports that are not newer than the last one of the engine change nothing. Counters of tenants that are
    not in the database are left out.

    Returns:
        The refusals in the report.
    """
    engine = session.get(Engine, report.engine_id)
    if engine is not None and (report.started_at, report.reported_at) <= (
        engine.started_at,
        engine.reported_at,
    ):
        return []
    earlier: dict[ArmKey, ArmCounters] = {}
    if engine is not None and engine.started_at == report.started_at:
        earlier = _by_arm(decode(engine.telemetry, EngineTelemetry).counters)
    known = set(session.scalars(select(Tenant.id)))
    bucket = int(report.reported_at // BUCKET_SECONDS) * BUCKET_SECONDS
    for key, counters in _by_arm(report.counters).items():
        change = _difference(counters, earlier.get(key))
        if key[0] in known and change is not None:
            _add(_total(session, key), change)
            _add(_sample(session, key, report.engine_id, bucket), change)
            _add(_history(session, key, bucket - bucket % HISTORY_BUCKET_SECONDS), change)
    if engine is None:
        engine = Engine(id=report.engine_id)
        session.add(engine)
    engine.started_at = report.started_at
    engine.reported_at = report.reported_at
    engine.received_at = received_at
    engine.telemetry = encode(report)
    return [
        Refusal(
            engine=report.engine_id,
            tenant=tenant,
            policy_version=report.refused_policies.get(tenant),
            acknowledged=report.acknowledged.get(tenant, 0),
            reported_at=report.reported_at,
            reason=reason,
        )
        for tenant, reason in report.refused.items()
        if tenant in known
    ]


def samples(session: Session, key: ArmKey, since: float) -> list[Sample]:
    """Read the time series of one arm, oldest first, leaving out the bucket that was open at `since`."""
    tenant, arm, version = key
    rows = session.scalars(
        select(ArmSample)
        .where(
            ArmSample.tenant == tenant,
            ArmSample.arm == arm,
            ArmSample.version == version,
            ArmSample.bucket >= since,
        )
        .order_by(ArmSample.bucket, ArmSample.engine)
    )
    return [
        Sample(
            verify_steps=row.verify_steps,
            drafted=row.drafted,
            accepted=row.accepted,
            accepted_per_position=tuple(row.accepted_per_position),
            emitted=row.emitted,
            engine_seconds=row.engine_seconds,
        )
        for row in rows
    ]


def prune(session: Session, now: float) -> None:
    """Delete samples older than a day and history older than a month; totals stay."""
    session.execute(delete(ArmSample).where(ArmSample.bucket < now - SAMPLE_RETENTION_SECONDS))
    session.execute(delete(ArmHistory).where(ArmHistory.bucket < now - HISTORY_RETENTION_SECONDS))


def _by_arm(counters: list[ArmCounters]) -> dict[ArmKey, ArmCounters]:
    return {(item.tenant, item.arm.value, item.version): item for item in counters}


def _difference(new: ArmCounters, old: ArmCounters | None) -> ArmCounters | None:
    """What `new` has more than `old`; None where that is nothing."""
    if old is None:
        old = ArmCounters(new.tenant, new.arm, new.version)
    change = ArmCounters(
        new.tenant,
        new.arm,
        new.version,
        requests=max(new.requests - old.requests, 0),
        verify_steps=max(new.verify_steps - old.verify_steps, 0),
        drafted=max(new.drafted - old.drafted, 0),
        accepted=max(new.accepted - old.accepted, 0),
        accepted_per_position=_add_positions(
            new.accepted_per_position, [-count for count in old.accepted_per_position]
        ),
        emitted=max(new.emitted - old.emitted, 0),
        engine_seconds=max(new.engine_seconds - old.engine_seconds, 0.0),
        verify_steps_by_context=_add_positions(
            new.verify_steps_by_context, [-count for count in old.verify_steps_by_context]
        ),
        accepted_by_context=_add_positions(
            new.accepted_by_context, [-count for count in old.accepted_by_context]
        ),
    )
    return change if change.requests or change.verify_steps or change.emitted else None


def _add(row: CounterColumns, change: ArmCounters) -> None:
    row.requests += change.requests
    row.verify_steps += change.verify_steps
    row.drafted += change.drafted
    row.accepted += change.accepted
    # A new list: changes inside a JSON column's value are not seen.
    row.accepted_per_position = _add_positions(row.accepted_per_position, change.accepted_per_position)
    row.emitted += change.emitted
    row.engine_seconds += change.engine_seconds
    row.verify_steps_by_context = _add_positions(row.verify_steps_by_context, change.verify_steps_by_context)
    row.accepted_by_context = _add_positions(row.accepted_by_context, change.accepted_by_context)


def _add_positions(left: list[int], right: list[int]) -> list[int]:
    return [max(a + b, 0) for a, b in zip_longest(left, right, fillvalue=0)]


def _zero() -> dict[str, Any]:
    """Columns of a row that has counted nothing."""
    numbers = dict.fromkeys(("requests", "verify_steps", "drafted", "accepted", "emitted"), 0)
    lists: dict[str, list[int]] = {
        name: [] for name in ("accepted_per_position", "verify_steps_by_context", "accepted_by_context")
    }
    return {**numbers, **lists, "engine_seconds": 0.0}


def _total(session: Session, key: ArmKey) -> ArmTotal:
    row = session.get(ArmTotal, key)
    if row is None:
        tenant, arm, version = key
        row = ArmTotal(tenant=tenant, arm=arm, version=version, **_zero())
        session.add(row)
    return row


def _history(session: Session, key: ArmKey, bucket: int) -> ArmHistory:
    tenant, arm, version = key
    row = session.get(ArmHistory, (tenant, bucket, arm, version))
    if row is None:
        row = ArmHistory(tenant=tenant, bucket=bucket, arm=arm, version=version, **_zero())
        session.add(row)
    return row


def _sample(session: Session, key: ArmKey, engine: str, bucket: int) -> ArmSample:
    tenant, arm, version = key
    row = session.scalar(
        select(ArmSample).where(
            ArmSample.tenant == tenant,
            ArmSample.arm == arm,
            ArmSample.version == version,
            ArmSample.engine == engine,
            ArmSample.bucket == bucket,
        )
    )
    if row is None:
        row = ArmSample(
            tenant=tenant,
            arm=arm,
            version=version,
            engine=engine,
            bucket=bucket,
            **_zero(),
        )
        session.add(row)
    return row
