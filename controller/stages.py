"""Rollouts: a version from shadow over canary into service, or back.

As in `controller.rollout`, every function changes its session and leaves the commit to the caller: stage,
version, decision and message to the engines become true together, and a controller that is killed in the
middle finds everything as it was before. All that a rollout needs is in its row, so that any controller goes
on with it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from adaptive.contracts import Arm
from controller import drift, hedge, rollout
from controller.goodput import StepCosts, arm_name, arm_seconds, losses
from controller.models import Decision, DecisionKind, Rollout, Tenant, TenantWeights, Version, VersionStatus
from controller.telemetry import samples
from controller.trial import ACTIVE, Shadow, Stage, Step, judge_canary, judge_shadow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from adaptive.contracts import ArmScored, EngineTelemetry

RECENT: Final = 256
"""Scored traces whose repetition is noticed (the log delivers at least once)."""
DEFAULT_COSTS: Final = StepCosts(1.0, 0.1)
"""Until an engine has reported its own; a draft by a step without any, about as on two CPU cores."""


def begin(
    session: Session,
    tenant: Tenant,
    version: int,
    share: float,
    reason: str,
    evidence: dict[str, Any],
    now: float,
) -> Decision:
    """Start the rollout of a version, in shadow; one under way ends."""
    running = rollout.active(session, tenant.id)
    if running is not None:
        abort(
            session, tenant, running, f"version {version} came, which is newer", now, VersionStatus.CANDIDATE
        )
    session.add(
        Rollout(
            tenant=tenant.id,
            version=version,
            stage=Stage.SHADOW,
            share=share,
            started_at=now,
            stage_since=now,
            reason=reason,
            shadow=Shadow().to_plain(),
            evidence={},
        )
    )
    return rollout.record(
        session,
        tenant,
        DecisionKind.ROLLOUT,
        actor="policy",
        version=version,
        reason=f"{reason}; it is scored on traces first",
        now=now,
        evidence=evidence | {"stage": Stage.SHADOW.value},
    )


def advance(session: Session, tenant: Tenant, now: float) -> Decision | None:
    """Take the rollout of a tenant to its next stage where its evidence says so; a held tenant's waits."""
    running = rollout.active(session, tenant.id)
    if running is None or tenant.pin is not None or tenant.freeze:
        return None
    if running.stage == Stage.SHADOW:
        return _advance_shadow(session, tenant, running, now)
    since = running.stage_since
    arm, serving = (Arm.TURBO, 0) if tenant.champion is None else (Arm.ADAPTER, tenant.champion)
    step, lift = judge_canary(
        samples(session, (tenant.id, Arm.ADAPTER, running.version), since),
        samples(session, (tenant.id, arm, serving), since),
    )
    if lift is None:
        return None
    running.evidence = asdict(lift)
    if step is Step.WAIT:
        return None
    reason = (
        f"version {running.version} as canary against {rollout.name(tenant.champion)}: acceptance length "
        f"{lift.champion_tau:.2f} against {lift.control_tau:.2f}, lift {lift.tau:.3f} (95 % interval "
        f"{lift.tau_lower:.3f} to {lift.tau_upper:.3f}, valid at every look)"
    )
    if step is Step.ABORT:
        return abort(session, tenant, running, reason, now, VersionStatus.ROLLED_BACK, evidence=asdict(lift))
    return rollout.promote(
        session, tenant, running.version, actor="policy", reason=reason, now=now, evidence=asdict(lift)
    )


def abort(
    session: Session,
    tenant: Tenant,
    running: Rollout,
    reason: str,
    now: float,
    status: VersionStatus,
    *,
    actor: str = "policy",
    evidence: dict[str, Any] | None = None,
) -> Decision:
    """End a rollout; its version gets `status`, and engines are told where it had requests."""
    was = running.stage
    rollout.end(running, Stage.ABORTED, reason, now)
    row = session.get_one(Version, (tenant.id, running.version))
    row.status, row.reason = status, reason
    session.flush()
    if was == Stage.CANARY:
        rollout.announce_policy(session, tenant, reason, now)
    return rollout.record(
        session,
        tenant,
        DecisionKind.ABORT,
        actor=actor,
        version=running.version,
        reason=f"rollout ended in stage {was}: {reason}",
        now=now,
        evidence=evidence,
    )


def receive_scored(session: Session, scored: ArmScored, costs: StepCosts, now: float) -> list[Decision]:
    """Take in the scores of every arm on a trace: weights over arms, drift, evidence of a version in shadow.

    A trace that came before, or of a tenant that is not known, changes nothing.

    Returns:
        One decision per arm that was found to have drifted.
    """
    tenant = session.get(Tenant, scored.tenant)
    seconds = arm_seconds(scored, costs)
    if tenant is None or not seconds:
        return []
    row = session.get(TenantWeights, tenant.id)
    if row is None:
        row = TenantWeights(
            tenant=tenant.id,
            updated_at=now,
            state=hedge.HedgeState().to_plain() | {"recent": [], "windows": {}},
        )
        session.add(row)
    recent = row.state["recent"]
    if scored.trace_id in recent:
        return []
    running = rollout.active(session, tenant.id)
    serving = rollout.name(tenant.champion)
    kept = {"off", "turbo", serving} | ({rollout.name(running.version)} if running is not None else set())
    state = hedge.keep(hedge.HedgeState.from_plain(row.state), kept)
    state = hedge.update(state, {arm: loss for arm, loss in losses(seconds).items() if arm in kept})
    taus = {arm_name(score): 1 + score.accepted / max(score.verify_steps, 1) for score in scored.scores}
    windows: dict[str, list[float]] = {}
    found: list[Decision] = []
    for arm in sorted(taus.keys() & {"turbo", serving}):
        windows[arm], drifted = drift.observe(row.state["windows"].get(arm, []), taus[arm])
        if drifted is not None:
            found.append(_record_drift(session, tenant, arm, drifted, now))
    row.state = state.to_plain() | {"recent": [*recent, scored.trace_id][-RECENT:], "windows": windows}
    row.updated_at = now
    if running is not None and running.stage == Stage.SHADOW:
        challenger = rollout.name(running.version)
        if serving in taus and challenger in taus:
            shadow = Shadow.from_plain(running.shadow)
            running.shadow = shadow.add(taus[serving], taus[challenger]).to_plain()
    return found


def arm_weights(session: Session, tenant_id: str) -> Mapping[str, float]:
    """Weight of every scored arm of a tenant, summing to 1; empty before the first score."""
    row = session.get(TenantWeights, tenant_id)
    return {} if row is None else hedge.weights(hedge.HedgeState.from_plain(row.state))


def costs_of(report: EngineTelemetry, lookahead: int) -> StepCosts | None:
    """What one request's steps cost on an engine; None where it does not say."""
    if not report.target_seconds or not report.draft_pass_seconds:
        return None
    least = min(report.draft_pass_seconds)
    return StepCosts.at_load(report.target_seconds, report.draft_pass_seconds[least], 1, max(lookahead, 1))


def tenants_in_rollout(session: Session) -> list[str]:
    """Tenants whose rollout is under way."""
    query = select(Rollout.tenant).where(Rollout.stage.in_(ACTIVE)).order_by(Rollout.tenant)
    return list(session.scalars(query))


def _record_drift(session: Session, tenant: Tenant, arm: str, drifted: drift.Drift, now: float) -> Decision:
    return rollout.record(
        session,
        tenant,
        DecisionKind.DRIFT,
        actor="policy",
        version=tenant.champion,
        reason=f"acceptance length of {arm} on traces went from {drifted.before:.2f} to {drifted.after:.2f}",
        now=now,
        evidence={"arm": arm, "before": drifted.before, "after": drifted.after},
    )


def _advance_shadow(session: Session, tenant: Tenant, running: Rollout, now: float) -> Decision | None:
    running.stage_since = min(running.stage_since, now)  # the clock may have been set back: count from here
    shadow = Shadow.from_plain(running.shadow)
    step = judge_shadow(shadow, now - running.stage_since)
    if step is Step.WAIT:
        return None
    lower, upper = shadow.interval()
    evidence: dict[str, Any] = {"traces": shadow.traces, "stage": Stage.CANARY.value}
    if shadow.traces:
        evidence |= {"gain_lower": lower, "gain_upper": upper}
        found = f"gain {lower:+.1%} to {upper:+.1%} over {shadow.traces} scored traces"
    else:
        found = "no learner scored it on traces, so its hold-out has to do"
    if step is Step.ABORT:
        return abort(session, tenant, running, found, now, VersionStatus.CANDIDATE, evidence=evidence)
    running.stage, running.stage_since = Stage.CANARY, now
    running.reason = f"version {running.version} tries {running.share:.0%} of the requests: {found}"
    session.flush()
    rollout.announce_policy(session, tenant, running.reason, now)
    return rollout.record(
        session,
        tenant,
        DecisionKind.ROLLOUT,
        actor="policy",
        version=running.version,
        reason=running.reason,
        now=now,
        evidence=evidence,
    )
