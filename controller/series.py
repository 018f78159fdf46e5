"""Acceptance, tokens per second and lift of a tenant over time, by arm, draft position and context length.

Samples of five seconds are kept for a day, buckets of five minutes for a month. A series is read from
whichever is as fine as its step, so that what a request reads is bounded by its number of points.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from adaptive.contracts import CONTEXT_BUCKETS, Arm
from controller.errors import InvalidFieldError
from controller.models import ArmHistory, ArmSample
from controller.schemas import ArmSeries, ContextPoint, LiftPoint, Series, SeriesPoint
from controller.telemetry import HISTORY_BUCKET_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from controller.models import CounterColumns

STEPS: Final = (5, 60, 300, 3_600, 86_400)
MOST_POINTS: Final = 500
DEFAULT_POINTS: Final = 120
DEFAULT_SECONDS: Final = 3_600.0


@dataclass(slots=True)
class _Counts:
    """Sums over the rows of one step."""

    requests: int = 0
    verify_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    engine_seconds: float = 0.0
    positions: list[int] = field(default_factory=list)
    context_steps: list[int] = field(default_factory=list)
    context_accepted: list[int] = field(default_factory=list)

    def add(self, row: CounterColumns) -> None:
        """Add one row."""
        self.requests += row.requests
        self.verify_steps += row.verify_steps
        self.drafted += row.drafted
        self.accepted += row.accepted
        self.emitted += row.emitted
        self.engine_seconds += row.engine_seconds
        self.positions = _sum(self.positions, row.accepted_per_position)
        self.context_steps = _sum(self.context_steps, row.verify_steps_by_context)
        self.context_accepted = _sum(self.context_accepted, row.accepted_by_context)

    @property
    def tau(self) -> float | None:
        """Acceptance length."""
        return 1 + self.accepted / self.verify_steps if self.verify_steps else None

    @property
    def speed(self) -> float | None:
        """Tokens per second of engine time."""
        return self.emitted / self.engine_seconds if self.engine_seconds > 0 else None


def choose_step(since: float, until: float, step: int | None) -> int:
    """Choose or check the width of the points in seconds.

    Raises:
        InvalidFieldError: the stretch is empty, or the step is none of STEPS or makes too many points.
    """
    if not since < until:
        raise InvalidFieldError(
            "since", f"{since:g} is not before until ({until:g}): give an earlier time, in Unix seconds"
        )
    if step is None:
        wide = (one for one in STEPS if (until - since) / one <= DEFAULT_POINTS)
        step = next(wide, STEPS[-1])
    elif step not in STEPS:
        raise InvalidFieldError("step", f"{step} is none of {', '.join(map(str, STEPS))}: choose one of them")
    if (until - since) / step > MOST_POINTS:
        raise InvalidFieldError(
            "step",
            f"{step} makes more than {MOST_POINTS} points of {until - since:g} s: raise step or since",
        )
    return step


def read_series(session: Session, tenant: str, since: float, until: float, step: int) -> Series:
    """Read the series of every arm of a tenant.

    Args:
        session: Database session.
        tenant: Tenant id, which must exist.
        since: First moment, Unix seconds; the point that holds it is whole.
        until: End, exclusive.
        step: Seconds per point, one of STEPS.
    """
    model: Any = ArmHistory if step >= HISTORY_BUCKET_SECONDS else ArmSample
    first = since - since % step
    rows = session.scalars(
        select(model).where(model.tenant == tenant, model.bucket >= first, model.bucket < until)
    )
    arms: dict[tuple[str, int], dict[int, _Counts]] = {}
    for row in rows:
        at = row.bucket - row.bucket % step
        arms.setdefault((row.arm, row.version), {}).setdefault(at, _Counts()).add(row)
    return Series(
        tenant=tenant,
        since=first,
        until=until,
        step=step,
        context_buckets=[*CONTEXT_BUCKETS, None],
        data=[
            ArmSeries(
                arm=arm, version=version, points=[_point(at, counts) for at, counts in sorted(points.items())]
            )
            for (arm, version), points in sorted(arms.items())
        ],
        lift=_lift(arms),
    )


def _point(at: int, counts: _Counts) -> SeriesPoint:
    steps = counts.verify_steps
    return SeriesPoint(
        at=at,
        requests=counts.requests,
        verify_steps=steps,
        drafted=counts.drafted,
        accepted=counts.accepted,
        tokens=counts.emitted,
        engine_seconds=counts.engine_seconds,
        tau=counts.tau,
        acceptance=counts.accepted / counts.drafted if counts.drafted else None,
        acceptance_per_position=[count / steps for count in counts.positions] if steps else [],
        tokens_per_engine_second=counts.speed,
        by_context=[
            ContextPoint(verify_steps=taken, tau=1 + accepted / taken if taken else None)
            for taken, accepted in zip_longest(counts.context_steps, counts.context_accepted, fillvalue=0)
        ],
    )


def _lift(arms: dict[tuple[str, int], dict[int, _Counts]]) -> list[LiftPoint]:
    """Every adapter's points over turbo's at the same time; nothing where one of both did not run."""
    turbo = arms.get((Arm.TURBO, 0), {})
    points = [
        LiftPoint(
            at=at,
            version=version,
            tau=_ratio(counts.tau, turbo[at].tau),
            goodput=_ratio(counts.speed, turbo[at].speed),
        )
        for (arm, version), series in arms.items()
        if arm == Arm.ADAPTER
        for at, counts in series.items()
        if at in turbo
    ]
    return sorted(points, key=lambda point: (point.at, point.version))


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _sum(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip_longest(left, right, fillvalue=0)]
