"""What the API shows, put together from rows, telemetry and the learner's status file."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from adaptive.contracts import Arm, EngineTelemetry, TenantState, decode
from controller import rollout, stages
from controller.erasure import Step
from controller.models import (
    ArmTotal,
    AuditEntry,
    Decision,
    Engine,
    EngineSpeed,
    Erasure,
    Key,
    Rollout,
    Tenant,
    Version,
    VersionStatus,
)
from controller.names import KeyScope
from controller.schemas import (
    ArmState,
    AuditState,
    DecisionState,
    EngineState,
    ErasureAnswer,
    ErasureState,
    KeySummary,
    LiftState,
    NewKey,
    PolicyAcknowledgement,
    RefusalState,
    RolloutState,
    SlowdownState,
    TenantDetail,
    TenantSummary,
    VersionDetail,
    VersionState,
)
from controller.telemetry import samples
from controller.trial import ACTIVE, MIN_SHADOW_TRACES, Shadow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sqlalchemy.orm import Session

ALIVE_SECONDS: Final = 15.0
"""An engine that has not reported for so long is shown as not alive."""


def tenant_summary(tenant: Tenant) -> TenantSummary:
    """Describe a tenant in short."""
    return TenantSummary(**_summary(tenant))


def erasure_state(erasure: Erasure) -> ErasureState:
    """Describe an erasure, under way or done."""
    return ErasureState(
        id=erasure.id,
        tenant=erasure.tenant,
        state="done" if erasure.step == Step.DONE else "running",
        step=erasure.step,
        waiting=erasure.waiting or None,
        requested_by=erasure.requested_by,
        requested_at=erasure.requested_at,
        updated_at=erasure.updated_at,
        finished_at=erasure.finished_at,
        kafka_gone_by=erasure.kafka_gone_by,
        removed=erasure.removed,
        retired=erasure.retired,
        answers=[
            ErasureAnswer(process=process, **said) for process, said in sorted(erasure.acknowledged.items())
        ],
    )


def tenant_detail(session: Session, tenant: Tenant, status_file: Path, now: float) -> TenantDetail:
    """Describe all that is known of a tenant.

    Args:
        session: Database session.
        tenant: Its row.
        status_file: Where the learner writes its status.
        now: Unix seconds.
    """
    arm, version = _serving(tenant)
    window = samples(session, (tenant.id, arm, version), tenant.champion_since)
    steps = sum(sample.verify_steps for sample in window)
    drafted = sum(sample.drafted for sample in window)
    accepted = sum(sample.accepted for sample in window)
    _, lift = rollout.live_lift(session, tenant)
    totals = session.scalars(
        select(ArmTotal).where(ArmTotal.tenant == tenant.id).order_by(ArmTotal.arm, ArmTotal.version)
    )
    reports = [
        (row, decode(row.telemetry, EngineTelemetry))
        for row in session.scalars(select(Engine).order_by(Engine.id))
    ]
    return TenantDetail(
        **_summary(tenant),
        weight=tenant.weight,
        weights=_weights(tenant),
        arm_weights=dict(stages.arm_weights(session, tenant.id)),
        lookahead=tenant.max_lookahead,
        control_share=tenant.control_share,
        off_share=tenant.off_share,
        champion_since=tenant.champion_since,
        tau=1 + accepted / steps if steps else None,
        acceptance=accepted / drafted if drafted else None,
        lift=None if lift is None else LiftState(**asdict(lift)),
        arms=[_arm_state(row) for row in totals],
        engines=[
            PolicyAcknowledgement(
                engine=row.id,
                policy_version=report.acknowledged.get(tenant.id, 0),
                current=report.acknowledged.get(tenant.id, 0) == tenant.policy_version,
                alive=_alive(row, now),
            )
            for row, report in reports
        ],
        refusals=_refusals(session, tenant, reports),
        learning=_learning(status_file, tenant.id),
    )


def rollout_state(row: Rollout) -> RolloutState:
    """Describe a rollout with the numbers that decide about it."""
    shadow = Shadow.from_plain(row.shadow)
    lower, upper = shadow.interval() if shadow.traces > 1 else (None, None)
    return RolloutState(
        id=f"{row.tenant}@{row.version}",
        tenant=row.tenant,
        version=row.version,
        stage=row.stage,
        running=row.stage in ACTIVE,
        share=row.share,
        started_at=row.started_at,
        stage_since=row.stage_since,
        reason=row.reason,
        traces=shadow.traces,
        traces_wanted=MIN_SHADOW_TRACES,
        gain_lower=lower,
        gain_upper=upper,
        evidence=row.evidence,
    )


def version_state(row: Version) -> VersionState:
    """Describe one adapter version."""
    message = rollout.published(row)
    scores = {"turbo": message.turbo, "challenger": message.challenger, "champion": message.champion}
    return VersionState(
        id=f"{row.tenant}@{row.version}",
        version=row.version,
        status=row.status,
        reason=row.reason,
        created_at=message.created_at,
        received_at=row.received_at,
        promoted_at=row.promoted_at,
        uri=message.adapter.uri,
        sha256=message.adapter.sha256,
        rank=message.adapter.rank,
        target_sha256=message.adapter.target_sha256,
        turbo_sha256=message.adapter.turbo_sha256,
        holdout_tau={name: score.tau for name, score in scores.items() if score is not None},
        gain_lower=message.gain_lower,
        gain_upper=message.gain_upper,
        tokens_trained=message.tokens_trained,
        training_seconds=message.training_seconds,
        mlflow_run_id=message.mlflow_run_id,
    )


def version_detail(row: Version, decisions: Sequence[Decision]) -> VersionDetail:
    """Describe one adapter version with its lineage."""
    message = rollout.published(row)
    return VersionDetail(
        **version_state(row).model_dump(),
        tenant=row.tenant,
        trace_first_offset=message.trace_first_offset,
        trace_last_offset=message.trace_last_offset,
        seed=message.seed,
        derived_from=message.derived_from,
        decisions=[decision_state(decision) for decision in decisions],
    )


def decision_state(row: Decision) -> DecisionState:
    """Describe one decision."""
    return DecisionState(
        id=f"decision_{row.id}",
        tenant=row.tenant,
        decided_at=row.decided_at,
        kind=row.kind,
        actor=row.actor,
        version=row.version,
        champion=row.champion,
        policy_version=row.policy_version,
        reason=row.reason,
        evidence=row.evidence,
    )


def key_summary(row: Key) -> KeySummary:
    """Describe a key."""
    return KeySummary(**_key(row))


def new_key(row: Key, secret: str | None) -> NewKey:
    """Describe a key that was just made."""
    return NewKey(**_key(row), key=secret)


def audit_state(row: AuditEntry) -> AuditState:
    """Describe one entry of the audit log."""
    return AuditState(
        id=f"audit_{row.id}",
        at=row.at,
        actor=row.actor,
        scope=row.scope,
        action=row.action,
        tenant=row.tenant,
        request_id=row.request_id,
        details=row.details,
    )


def engine_state(row: Engine, now: float, speed: EngineSpeed | None = None) -> EngineState:
    """Describe the newest report of an engine."""
    report = decode(row.telemetry, EngineTelemetry)
    return EngineState(
        id=row.id,
        alive=_alive(row, now),
        started_at=row.started_at,
        reported_at=row.reported_at,
        target_sha256=report.target_sha256,
        turbo_sha256=report.turbo_sha256,
        slots=[
            {
                "slot": slot.slot,
                "tenant": slot.tenant,
                "version": slot.version,
                "weight": slot.weight,
                "requests": slot.requests,
            }
            for slot in report.slots
        ],
        acknowledged=report.acknowledged,
        refused=report.refused,
        swaps=len(report.swap_pause_ms),
        swap_pause_ms_max=max(report.swap_pause_ms, default=None),
        traces_published=report.traces_published,
        traces_dropped=report.traces_dropped,
        queue_depth=report.queue_depth,
        slowdown=None if speed is None else SlowdownState(ratio=speed.ratio, alert_since=speed.alert_since),
    )


def _key(row: Key) -> dict[str, Any]:
    return {
        "id": row.id,
        "prefix": row.prefix,
        "scope": KeyScope(row.scope),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }


def _summary(tenant: Tenant) -> dict[str, Any]:
    return {
        "id": tenant.id,
        "created_at": tenant.created_at,
        "state": TenantState(tenant.state),
        "learn": tenant.learn,
        "share": tenant.share,
        "freeze": tenant.freeze,
        "pin": tenant.pin,
        "champion": tenant.champion,
        "policy_version": tenant.policy_version,
        "revision": tenant.revision,
        "generation": tenant.generation,
        "retention_seconds": tenant.retention_seconds,
        "retention_bytes": tenant.retention_bytes,
        "requests_per_minute": tenant.requests_per_minute,
        "tokens_per_minute": tenant.tokens_per_minute,
        "concurrent_requests": tenant.concurrent_requests,
    }


def _serving(tenant: Tenant) -> tuple[Arm, int]:
    return (Arm.TURBO, 0) if tenant.champion is None else (Arm.ADAPTER, tenant.champion)


def _weights(tenant: Tenant) -> dict[str, float]:
    rest = 1 - tenant.off_share
    if tenant.champion is None:
        return {"off": tenant.off_share, "turbo": rest}
    return {
        "off": tenant.off_share,
        "turbo": tenant.control_share,
        f"adapter@{tenant.champion}": max(rest - tenant.control_share, 0.0),
    }


def _arm_state(row: ArmTotal) -> ArmState:
    return ArmState(
        arm=row.arm,
        version=row.version,
        requests=row.requests,
        verify_steps=row.verify_steps,
        drafted=row.drafted,
        accepted=row.accepted,
        acceptance=row.accepted / row.drafted if row.drafted else None,
        acceptance_per_position=[count / row.verify_steps for count in row.accepted_per_position]
        if row.verify_steps
        else [],
        tau=1 + row.accepted / row.verify_steps if row.verify_steps else None,
        tokens=row.emitted,
        engine_seconds=row.engine_seconds,
        tokens_per_engine_second=row.emitted / row.engine_seconds if row.engine_seconds > 0 else None,
    )


def _refusals(
    session: Session, tenant: Tenant, reports: list[tuple[Engine, EngineTelemetry]]
) -> list[RefusalState]:
    refused = session.scalars(
        select(Version)
        .where(Version.tenant == tenant.id, Version.status == VersionStatus.REFUSED)
        .order_by(Version.version)
    )
    found = [RefusalState(version=row.version, engine=None, reason=row.reason) for row in refused]
    found += [
        RefusalState(version=None, engine=row.id, reason=report.refused[tenant.id])
        for row, report in reports
        if tenant.id in report.refused
    ]
    return found


def _alive(row: Engine, now: float) -> bool:
    return now - row.received_at < ALIVE_SECONDS


def _learning(status_file: Path, tenant_id: str) -> dict[str, Any] | None:
    """The learner's status of a tenant: its entry under `tenants`, and whether learning is paused."""
    try:
        status = json.loads(status_file.read_bytes())
        entry = status.get("tenants", {}).get(tenant_id)
        paused = bool(status.get("paused", False))
    except (OSError, ValueError, AttributeError):
        # No learner has run here, or its file is damaged: serving does not depend on it.
        return None
    return {**entry, "paused": paused} if isinstance(entry, dict) else None
