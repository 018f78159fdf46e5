"""Whether a version on trial may go on to the next stage: sequential tests, valid at every look.

A rollout goes shadow -> canary -> champion. In shadow the version serves nothing: its scores on the tenant's
traces are compared with those of what serves, paired by trace. As canary it drafts for a share of the
requests and is compared with what serves the others. Both comparisons are looked at whenever traffic has come
in, so their intervals are confidence sequences (see `controller.policy`, arXiv 2103.06476). A stage ends well
where the interval rules out a loss of more than MARGIN, badly where it lies wholly below zero gain; the watch
over champions goes on afterwards.
"""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from controller.policy import enough, measure_lift, widening

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controller.policy import Lift, Sample

MARGIN: Final = 0.1
"""Most relative loss in acceptance length that a stage may leave possible."""
MIN_SHADOW_TRACES: Final = 20
SHADOW_SECONDS: Final = 60.0
"""Without a single score for so long (no learner scores this tenant), the gate's hold-out has to do."""


class Stage(enum.StrEnum):
    """Where a version stands in its rollout."""

    SHADOW = "shadow"
    CANARY = "canary"
    CHAMPION = "champion"
    ABORTED = "aborted"


ACTIVE: Final = (Stage.SHADOW, Stage.CANARY)


class Step(enum.StrEnum):
    """What a rollout does next."""

    WAIT = "wait"
    GO_ON = "go_on"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Shadow:
    """Log ratios of acceptance lengths, challenger over what serves, one per scored trace.

    Attributes:
        traces: How many.
        total: Their sum.
        squares: Sum of their squares.
    """

    traces: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, serving_tau: float, challenger_tau: float) -> Shadow:
        """With one trace more; both acceptance lengths are at least 1."""
        ratio = math.log(challenger_tau / serving_tau)
        return Shadow(self.traces + 1, self.total + ratio, self.squares + ratio * ratio)

    def interval(self) -> tuple[float, float]:
        """Relative gain, lower and upper end of the 95 % confidence sequence."""
        if self.traces < 2:
            return -1.0, math.inf
        mean = self.total / self.traces
        variance = max(self.squares / self.traces - mean * mean, 0.0) + 1e-4 / self.traces
        radius = math.sqrt(variance / self.traces) * widening(self.traces / MIN_SHADOW_TRACES)
        return math.expm1(mean - radius), math.expm1(min(mean + radius, 700.0))

    def to_plain(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Shadow:
        """Read what `to_plain` wrote."""
        return cls(**plain)


def judge_shadow(shadow: Shadow, seconds: float) -> Step:
    """Decide about a version in shadow.

    Args:
        shadow: Its scores so far.
        seconds: How long it has been in shadow by the controller's clock; may be negative where that jumped.
    """
    if shadow.traces == 0:
        return Step.GO_ON if seconds >= SHADOW_SECONDS else Step.WAIT
    lower, upper = shadow.interval()
    return _step(lower, upper) if shadow.traces >= MIN_SHADOW_TRACES else Step.WAIT


def judge_canary(challenger: Sequence[Sample], serving: Sequence[Sample]) -> tuple[Step, Lift | None]:
    """Decide about a canary from the samples of both sides over the same time."""
    lift = measure_lift(challenger, serving)
    if lift is None or not enough(lift, challenger, serving):
        return Step.WAIT, lift
    return _step(lift.tau_lower - 1, lift.tau_upper - 1), lift


def _step(lower: float, upper: float) -> Step:
    if upper < 0:
        return Step.ABORT
    return Step.GO_ON if lower > -MARGIN else Step.WAIT
