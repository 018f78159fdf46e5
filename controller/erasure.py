"""Erasing a tenant: what the controller's own tables lose, and how the erasure gets on elsewhere.

The request removes the rows and puts the tombstones into the outbox in one transaction: keys are refused, and
engines return to turbo, as soon as the log has them. Each step after it (`controller.erasing`) can be done
again, so an erasure that was interrupted anywhere goes on from its row.
"""

from __future__ import annotations

import enum
import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from sqlalchemy import CursorResult, delete, func, select

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    TOPIC_TENANT_ERASED,
    AdapterReference,
    EngineTelemetry,
    ErasureAcknowledged,
    TenantErased,
    decode,
    encode,
)
from controller import rollout, stages
from controller.errors import NotFoundError
from controller.models import (
    Answer,
    ArmHistory,
    ArmSample,
    ArmTotal,
    Decision,
    DecisionKind,
    Engine,
    Erasure,
    Key,
    OutboxMessage,
    Rollout,
    Tenant,
    TenantWeights,
    Version,
    VersionStatus,
)
from controller.outbox import enqueue, enqueue_tombstone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy.orm import Session

    from adaptive.contracts import Watermark

LEARNER: Final = "learner"
SILENT_SECONDS: Final = 120.0
"""An engine that has not reported for this long is not waited for: it forgets the tenant when it is back."""
_TOMBSTONES: Final = (TOPIC_POLICY_DECIDED, TOPIC_TENANT_CHANGED, TOPIC_DRAFTER_PUBLISHED)

_log = structlog.get_logger(__name__)


class Step(enum.StrEnum):
    """What an erasure does next; each step may be done again."""

    ANNOUNCE = "announce"
    """Tell everybody which records of the log no longer exist."""
    REMOVE = "remove"
    """Delete from the log and the store."""
    ACKNOWLEDGE = "acknowledge"
    """Wait for the learner and the engines."""
    SEAL = "seal"
    """Delete what came meanwhile, and raise the watermarks over it."""
    DONE = "done"


def request_erasure(session: Session, tenant_id: str, *, actor: str, now: float) -> Erasure:
    """Remove a tenant from the tables and begin its erasure; an erasure under way is returned as it is.

    Raises:
        NotFoundError: there is no such tenant.
    """
    running = unfinished(session, tenant_id)
    if running is not None:
        return running
    tenant = session.get(Tenant, tenant_id, with_for_update=True)
    if tenant is None:
        raise NotFoundError(f"unknown tenant {tenant_id!r}: GET /v1/tenants lists them")
    newest = session.scalar(select(func.max(Version.version)).where(Version.tenant == tenant_id))
    earlier = session.scalar(select(func.max(Erasure.last_version)).where(Erasure.tenant == tenant_id))
    derived = retire_derived(session, tenant_id, now)
    erasure = Erasure(
        id=f"erase_{secrets.token_hex(8)}",
        tenant=tenant_id,
        generation=tenant.generation,
        step=Step.ANNOUNCE,
        waiting="",
        requested_by=actor,
        requested_at=now,
        updated_at=now,
        finished_at=None,
        kafka_gone_by=None,
        learned=tenant.learned or newest is not None,
        last_version=max(newest or 0, earlier or 0),
        policy_version=tenant.policy_version,
        revision=tenant.revision,
        removed={},
        retired=_names(session, tenant_id, derived),
        derived=msgspec.msgpack.encode(derived),
        acknowledged={},
    )
    session.add(erasure)
    note_removed(erasure, remove_rows(session, tenant_id))
    for topic in _TOMBSTONES:
        enqueue_tombstone(session, topic, tenant_id, now)
    _log.info("erasure requested", tenant=tenant_id, erasure=erasure.id, actor=actor)
    return erasure


def unfinished(session: Session, tenant_id: str) -> Erasure | None:
    """Look for an erasure of this name that is not done."""
    return session.scalars(
        select(Erasure).where(Erasure.tenant == tenant_id, Erasure.step != Step.DONE)
    ).one_or_none()


def remove_rows(session: Session, tenant_id: str) -> dict[str, int]:
    """Delete every row about a tenant but those of its erasures; returns how many, per table."""
    tables = ((Key, "tenant"), (Version, "tenant"), (Decision, "tenant"), (ArmTotal, "tenant"))
    more = (
        (ArmSample, "tenant"),
        (ArmHistory, "tenant"),
        (Rollout, "tenant"),
        (TenantWeights, "tenant"),
        (Answer, "tenant"),
        (OutboxMessage, "key"),
        (Tenant, "id"),
    )
    removed = {}
    session.flush()
    for model, column in (*tables, *more):
        statement = delete(model).where(getattr(model, column) == tenant_id)
        if model is OutboxMessage:  # tombstones and the erasure itself must reach the log
            keep = OutboxMessage.value.is_(None) | (OutboxMessage.topic == TOPIC_TENANT_ERASED)
            statement = statement.where(~keep)
        result: CursorResult[Any] = session.execute(statement)  # type: ignore[assignment]  # as a DELETE returns
        removed[f"database {model.__tablename__}"] = result.rowcount
    removed["database engine reports"] = _strip_engines(session, tenant_id)
    return removed


def announcement(erasure: Erasure, watermarks: list[Watermark], *, sealed: bool) -> TenantErased:
    """Build what everybody is told."""
    return TenantErased(
        tenant=erasure.tenant,
        erasure_id=erasure.id,
        generation=erasure.generation,
        erased_at=erasure.requested_at,
        watermarks=watermarks,
        kafka_gone_by=erasure.kafka_gone_by,
        sealed=sealed,
        last_version=erasure.last_version,
        policy_version=erasure.policy_version,
        revision=erasure.revision,
        retired=derived_adapters(erasure),
    )


def announce(session: Session, erasure: Erasure, watermarks: list[Watermark], now: float) -> None:
    """Put the announcement into the outbox."""
    enqueue(session, announcement(erasure, watermarks, sealed=erasure.step == Step.SEAL), now)


def derived_adapters(erasure: Erasure) -> list[AdapterReference]:
    """List other tenants' versions that were made with the erased tenant's data."""
    return msgspec.msgpack.decode(erasure.derived, type=list[AdapterReference])


def acknowledge(session: Session, message: ErasureAcknowledged) -> bool:
    """Note what a process says; False if it is not about an erasure under way."""
    erasure = session.get(Erasure, message.erasure_id, with_for_update=True)
    if erasure is None or erasure.step == Step.DONE:
        return False
    erasure.acknowledged = {
        **erasure.acknowledged,
        message.process: {
            "done": message.done,
            "waiting": message.waiting,
            "at": message.acknowledged_at,
            "removed": {item.place: item.count for item in message.removed},
        },
    }
    erasure.retired = sorted({*erasure.retired, *message.retired})
    return True


def missing(session: Session, erasure: Erasure, now: float) -> dict[str, str]:
    """Tell which processes still hold data of the tenant, and why."""
    expected = {LEARNER} if erasure.learned else set()
    expected |= {
        f"engine {engine_id}"
        for engine_id in session.scalars(select(Engine.id).where(Engine.received_at > now - SILENT_SECONDS))
    }
    expected |= erasure.acknowledged.keys()
    waiting = {}
    for process in sorted(expected):
        said = erasure.acknowledged.get(process)
        if said is None:
            waiting[process] = "has not answered yet"
        elif not said["done"]:
            waiting[process] = said["waiting"] or "is not done yet"
    return waiting


def note_removed(erasure: Erasure, counts: Mapping[str, int]) -> None:
    """Add to what was removed; places where there was nothing are listed too."""
    erasure.removed = {
        **erasure.removed,
        **{place: erasure.removed.get(place, 0) + count for place, count in counts.items()},
    }


def retire_derived(session: Session, tenant_id: str, now: float) -> list[AdapterReference]:
    """Take other tenants' versions that were made with this tenant's data out of service, for good."""
    derived: list[Version] = [
        row
        for row in session.scalars(select(Version).where(Version.tenant != tenant_id))
        if tenant_id in rollout.published(row).derived_from
    ]
    reason = "was derived from an erased tenant's data"
    for row in derived:
        row.status, row.reason = VersionStatus.ERASED, reason
    session.flush()
    for name in sorted({row.tenant for row in derived}):
        tenant = session.get_one(Tenant, name, with_for_update=True)
        mine = {row.version: row for row in derived if row.tenant == name}
        if tenant.pin in mine:
            tenant.pin = None
        running = rollout.active(session, name)
        if running is not None and running.version in mine:
            stages.abort(session, tenant, running, reason, now, VersionStatus.ERASED, actor="erasure")
        if tenant.champion in mine:
            outgoing = mine[tenant.champion]
            why = f"version {tenant.champion} {reason}"
            rollout.rollback(
                session, tenant, actor="erasure", reason=why, now=now, kind=DecisionKind.ROLLBACK
            )
            outgoing.status, outgoing.reason = VersionStatus.ERASED, reason
    return [rollout.published(row).adapter for row in derived]


def _names(session: Session, tenant_id: str, derived: Iterable[AdapterReference]) -> list[str]:
    own = session.scalars(select(Version.version).where(Version.tenant == tenant_id))
    names = [f"{tenant_id}@{version}" for version in sorted(own)]
    return names + [f"{adapter.tenant}@{adapter.version}" for adapter in derived]


def _strip_engines(session: Session, tenant_id: str) -> int:
    """Take a tenant out of the engines' newest reports."""
    count = 0
    for engine in session.scalars(select(Engine)):
        report = decode(engine.telemetry, EngineTelemetry)
        stripped = msgspec.structs.replace(
            report,
            counters=[item for item in report.counters if item.tenant != tenant_id],
            slots=[item for item in report.slots if item.tenant != tenant_id],
            acknowledged={key: value for key, value in report.acknowledged.items() if key != tenant_id},
            refused={key: value for key, value in report.refused.items() if key != tenant_id},
            refused_policies={
                key: value for key, value in report.refused_policies.items() if key != tenant_id
            },
        )
        if stripped != report:
            engine.telemetry = encode(stripped)
            count += 1
    return count
