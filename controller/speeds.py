"""Keeps how fast engines are, and raises an alert where one became slower by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller import rollout, slowdown
from controller.models import Decision, DecisionKind, EngineSpeed, Tenant

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from adaptive.contracts import EngineTelemetry


def record_speed(session: Session, report: EngineTelemetry, now: float) -> list[Decision]:
    """Compare a report with the engine's past.

    Returns:
        One decision per tenant that the engine serves, where an alert was raised or cleared.
    """
    seconds = slowdown.step_seconds(report.target_seconds)
    if seconds is None:
        return []
    row = session.get(EngineSpeed, report.engine_id)
    if row is None or row.started_at != report.started_at:
        was = None
    else:
        was = slowdown.Speed(row.baseline, row.slow, row.ratio, row.alert_since is not None)
    speed = slowdown.observe(was, seconds)
    if row is None:
        row = EngineSpeed(engine=report.engine_id, alert_since=None)
        session.add(row)
    changed = speed.alert != (row.alert_since is not None)
    row.started_at, row.baseline = report.started_at, speed.baseline
    row.slow, row.ratio = speed.slow, speed.ratio
    if not changed:
        return []
    row.alert_since = now if speed.alert else None
    if speed.alert:
        reason = (
            f"engine {report.engine_id} needs {speed.ratio:.2f} times its usual time per step, control "
            "traffic included: no drafter is to blame; look at its machine and what else runs there"
        )
    else:
        reason = f"engine {report.engine_id} is about as fast as usual again ({speed.ratio:.2f} times)"
    tenants = sorted({counters.tenant for counters in report.counters})
    return [
        rollout.record(
            session,
            tenant,
            DecisionKind.ALERT,
            actor="policy",
            version=tenant.champion,
            reason=reason,
            now=now,
            evidence={"engine": report.engine_id, "ratio": speed.ratio, "raised": speed.alert},
        )
        for name in tenants
        if (tenant := session.get(Tenant, name)) is not None
    ]
