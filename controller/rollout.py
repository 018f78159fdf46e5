"""Which drafter serves a tenant: promote, hold, roll back, refuse; each with its reason on record.

Every function changes the session it is given and leaves the commit to the caller, so that the decision, the
statuses of the versions and the message to the engines become true together.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import structlog
from sqlalchemy import select

from adaptive.contracts import AdapterReference, Arm, DrafterPublished, PolicyDecided, decode, encode
from controller import policy
from controller.errors import ConflictError, NotFoundError
from controller.models import Decision, DecisionKind, Rollout, Tenant, Version, VersionStatus
from controller.outbox import enqueue
from controller.telemetry import samples
from controller.trial import ACTIVE, Stage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from controller.telemetry import Refusal

REFUSAL_GRACE_SECONDS: Final = 5.0
"""How long a refusal that names no policy may still be about an older one."""

_log = structlog.get_logger(__name__)


def announce_policy(session: Session, tenant: Tenant, reason: str, now: float) -> None:
    """Tell the engines what to do for a tenant from now on."""
    tenant.policy_version += 1
    tenant.decided_at = now
    running = active(session, tenant.id)
    on_trial = running if running is not None and running.stage == Stage.CANARY else None
    enqueue(
        session,
        PolicyDecided(
            tenant=tenant.id,
            policy_version=tenant.policy_version,
            champion=None if tenant.champion is None else _adapter(session, tenant.id, tenant.champion),
            weight=tenant.weight,
            max_lookahead=tenant.max_lookahead,
            control_share=tenant.control_share,
            off_share=tenant.off_share,
            reason=reason,
            decided_at=now,
            challenger=None if on_trial is None else _adapter(session, tenant.id, on_trial.version),
            canary_share=0.0 if on_trial is None else on_trial.share,
        ),
        now,
    )


def active(session: Session, tenant_id: str) -> Rollout | None:
    """The rollout that is under way for a tenant."""
    return session.scalar(select(Rollout).where(Rollout.tenant == tenant_id, Rollout.stage.in_(ACTIVE)))


def end(running: Rollout, stage: Stage, reason: str, now: float) -> None:
    """Note how a rollout ended."""
    running.stage, running.reason, running.stage_since = stage, reason, now


def name(version: int | None) -> str:
    """Name of what drafts: `turbo`, or `adapter@3`."""
    return Arm.TURBO.value if version is None else f"{Arm.ADAPTER.value}@{version}"


def record(
    session: Session,
    tenant: Tenant,
    kind: DecisionKind,
    *,
    actor: str,
    version: int | None,
    reason: str,
    now: float,
    evidence: dict[str, Any] | None = None,
) -> Decision:
    """Keep a decision and log it."""
    decision = Decision(
        tenant=tenant.id,
        decided_at=now,
        kind=kind.value,
        actor=actor,
        version=version,
        champion=tenant.champion,
        policy_version=tenant.policy_version,
        reason=reason,
        evidence=evidence or {},
    )
    session.add(decision)
    _log.info(
        "policy decided",
        tenant=tenant.id,
        kind=kind.value,
        actor=actor,
        version=version,
        champion=tenant.champion,
        policy_version=tenant.policy_version,
        reason=reason,
    )
    return decision


def receive_published(
    session: Session, published: DrafterPublished, now: float, canary_share: float = 0.0
) -> Decision | None:
    """Take over a version from a learner: roll it out, or keep it as a candidate and say why.

    With a canary share it begins its rollout in shadow, without one it is promoted at once.

    A version that is known already changes nothing (the log delivers at least once). Other bytes under its
    number are not taken over, which is put on record once.
    """
    adapter = published.adapter
    tenant = session.get(Tenant, adapter.tenant, with_for_update=True)
    if tenant is None:
        _log.warning("version of an unknown tenant ignored", tenant=adapter.tenant, version=adapter.version)
        return None
    known = session.get(Version, (tenant.id, adapter.version))
    if known is not None:
        return _receive_again(session, tenant, known, adapter, now)
    held = policy.Held(pin=tenant.pin, freeze=tenant.freeze)
    obstacle = policy.judge_published(held, adapter.version, tenant.champion)
    session.add(
        Version(
            tenant=tenant.id,
            version=adapter.version,
            status=VersionStatus.CANDIDATE,
            reason=obstacle or "passed the learner's gate",
            received_at=now,
            promoted_at=None,
            published=encode(published),
        )
    )
    session.flush()
    evidence = {"gain_lower": published.gain_lower, "gain_upper": published.gain_upper}
    if obstacle is not None:
        reason = f"version {adapter.version} passed the learner's gate but {obstacle}"
        return record(
            session,
            tenant,
            DecisionKind.HOLD,
            actor="policy",
            version=adapter.version,
            reason=reason,
            now=now,
            evidence=evidence,
        )
    reason = (
        f"version {adapter.version} passed the learner's gate: hold-out gain "
        f"{published.gain_lower:+.1%} to {published.gain_upper:+.1%} (95 % interval)"
    )
    if canary_share > 0:
        from controller import stages  # noqa: PLC0415  it builds on this module

        return stages.begin(session, tenant, adapter.version, canary_share, reason, evidence, now)
    return promote(
        session, tenant, adapter.version, actor="policy", reason=reason, now=now, evidence=evidence
    )


def promote(
    session: Session,
    tenant: Tenant,
    version: int,
    *,
    actor: str,
    reason: str,
    now: float,
    evidence: dict[str, Any] | None = None,
) -> Decision:
    """Make a version the champion.

    Raises:
        NotFoundError: the tenant has no such version.
        ConflictError: an engine refused that version.
    """
    row = session.get(Version, (tenant.id, version))
    if row is None:
        raise NotFoundError(
            f"tenant {tenant.id!r} has no version {version}: GET /v1/tenants/{tenant.id}/versions lists them"
        )
    if row.status == VersionStatus.REFUSED:
        raise ConflictError(f"version {version} was refused by an engine ({row.reason}): pick another one")
    if row.status in (VersionStatus.ERASED, VersionStatus.DELETED):
        raise ConflictError(f"version {version} {row.reason} and is gone: pick another one")
    _serve(
        session,
        tenant,
        version,
        outgoing=VersionStatus.RETIRED,
        reason=f"version {version} took over",
        now=now,
    )
    row.status, row.reason, row.promoted_at = VersionStatus.CHAMPION, reason, now
    announce_policy(session, tenant, reason, now)
    return record(
        session,
        tenant,
        DecisionKind.PROMOTE,
        actor=actor,
        version=version,
        reason=reason,
        now=now,
        evidence=evidence,
    )


def serve_turbo(session: Session, tenant: Tenant, *, actor: str, reason: str, now: float) -> Decision:
    """Take the champion out of service without holding anything against it."""
    _serve(session, tenant, None, outgoing=VersionStatus.RETIRED, reason=reason, now=now)
    announce_policy(session, tenant, reason, now)
    return record(session, tenant, DecisionKind.CONFIGURE, actor=actor, version=None, reason=reason, now=now)


def rollback(
    session: Session,
    tenant: Tenant,
    *,
    actor: str,
    reason: str,
    now: float,
    kind: DecisionKind = DecisionKind.ROLLBACK,
    evidence: dict[str, Any] | None = None,
) -> Decision:
    """Return to what served before the champion, else to turbo; the champion will not come back by itself.

    Raises:
        ConflictError: turbo serves, so there is nothing to roll back.
    """
    failed = tenant.champion
    if failed is None:
        raise ConflictError(f"turbo serves tenant {tenant.id!r}: there is nothing to roll back")
    retired = session.scalars(
        select(Version).where(Version.tenant == tenant.id, Version.status == VersionStatus.RETIRED)
    )
    successor = policy.fallback({row.version: row.promoted_at or 0.0 for row in retired})
    status = VersionStatus.REFUSED if kind is DecisionKind.REFUSE else VersionStatus.ROLLED_BACK
    _serve(session, tenant, successor, outgoing=status, reason=reason, now=now)
    if successor is not None:
        row = session.get_one(Version, (tenant.id, successor))
        row.status, row.reason, row.promoted_at = VersionStatus.CHAMPION, f"back in service: {reason}", now
    announce_policy(session, tenant, reason, now)
    return record(
        session, tenant, kind, actor=actor, version=failed, reason=reason, now=now, evidence=evidence
    )


def apply_refusal(session: Session, refusal: Refusal, now: float) -> Decision | None:
    """Take a champion that an engine cannot load out of service, whoever put it there.

    A refusal of an older policy than the one in force is out of date and changes nothing.
    """
    tenant = session.get(Tenant, refusal.tenant, with_for_update=True)
    if tenant is None:
        return None
    running = active(session, tenant.id)
    canary = running if running is not None and running.stage == Stage.CANARY else None
    if tenant.champion is None and canary is None:
        return None
    if refusal.policy_version is not None:
        current = refusal.policy_version == tenant.policy_version
    else:
        current = (
            refusal.acknowledged < tenant.policy_version
            and refusal.reported_at >= tenant.decided_at + REFUSAL_GRACE_SECONDS
        )
    if not current:
        return None
    if canary is not None:
        from controller import stages  # noqa: PLC0415  it builds on this module

        # The champion was accepted before; should it be to blame, it is refused again without the canary.
        reason = f"engine {refusal.engine} refused version {canary.version}: {refusal.reason}"
        return stages.abort(
            session, tenant, canary, reason, now, VersionStatus.REFUSED, actor="engine", evidence=None
        )
    reason = f"engine {refusal.engine} refused version {tenant.champion}: {refusal.reason}"
    if tenant.pin == tenant.champion:
        tenant.pin = None
        reason += " (its pin was removed)"
    return rollback(
        session,
        tenant,
        actor="engine",
        reason=reason,
        now=now,
        kind=DecisionKind.REFUSE,
        evidence={"engine": refusal.engine, "policy_version": tenant.policy_version},
    )


def live_lift(session: Session, tenant: Tenant) -> tuple[policy.Verdict, policy.Lift | None]:
    """Compare the champion with turbo's control traffic since the champion serves."""
    if tenant.champion is None:
        return policy.Verdict.WAIT, None
    since = tenant.champion_since
    return policy.judge_champion(
        samples(session, (tenant.id, Arm.ADAPTER, tenant.champion), since),
        samples(session, (tenant.id, Arm.TURBO, 0), since),
    )


def review(session: Session, tenant: Tenant, now: float) -> Decision | None:
    """Roll back a champion that is clearly slower than turbo on live traffic; a pinned one stays."""
    if tenant.pin is not None:
        return None
    verdict, lift = live_lift(session, tenant)
    if verdict is not policy.Verdict.ROLLBACK or lift is None:
        return None
    reason = (
        f"version {tenant.champion} is slower than turbo on live traffic: acceptance length "
        f"{lift.champion_tau:.2f} over {lift.champion_verify_steps} verify steps against "
        f"{lift.control_tau:.2f} over {lift.control_verify_steps}, lift {lift.tau:.3f} "
        f"(95 % interval {lift.tau_lower:.3f} to {lift.tau_upper:.3f})"
    )
    return rollback(session, tenant, actor="policy", reason=reason, now=now, evidence=asdict(lift))


def published(row: Version) -> DrafterPublished:
    """Unpack what the learner said about a version."""
    return decode(row.published, DrafterPublished)


def _receive_again(
    session: Session, tenant: Tenant, known: Version, adapter: AdapterReference, now: float
) -> Decision | None:
    """Hold other bytes announced under a known version's number; the same bytes are a repetition."""
    sha256 = published(known).adapter.sha256
    if adapter.sha256 == sha256:
        return None
    reason = (
        f"version {adapter.version} was announced again with other bytes (sha256 {adapter.sha256[:12]}, "
        f"known is {sha256[:12]}): the known version stays; did a learner lose its ledger?"
    )
    decided = select(Decision.id).where(
        Decision.tenant == tenant.id, Decision.version == adapter.version, Decision.reason == reason
    )
    if session.scalars(decided).first() is not None:
        _log.warning("version held already", tenant=tenant.id, version=adapter.version, reason=reason)
        return None
    return record(
        session,
        tenant,
        DecisionKind.HOLD,
        actor="policy",
        version=adapter.version,
        reason=reason,
        now=now,
        evidence={"sha256": adapter.sha256, "known_sha256": sha256, "uri": adapter.uri},
    )


def _serve(
    session: Session,
    tenant: Tenant,
    champion: int | None,
    *,
    outgoing: VersionStatus,
    reason: str,
    now: float,
) -> None:
    if tenant.champion is not None and tenant.champion != champion:
        row = session.get_one(Version, (tenant.id, tenant.champion))
        row.status, row.reason = outgoing, reason
    running = active(session, tenant.id)
    if running is not None:
        end(running, Stage.CHAMPION if running.version == champion else Stage.ABORTED, reason, now)
        session.flush()
    tenant.champion = champion
    tenant.champion_since = now


def _adapter(session: Session, tenant: str, version: int) -> AdapterReference:
    return published(session.get_one(Version, (tenant, version))).adapter
