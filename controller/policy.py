"""What to do about a tenant, as pure functions of what was measured.

The thin policy: a version that passed the learner's gate is promoted unless an operator holds the tenant, and
a champion whose live acceptance length is clearly below that of turbo on the same tenant's concurrent control
traffic goes back. The comparison is made again whenever new traffic has come in, so its interval must hold at
every look at once: it is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", arXiv 2103.06476, theorem 2.2), about
1.6 times as wide as the interval for a single look.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIN_CHAMPION_STEPS: Final = 200
MIN_CONTROL_STEPS: Final = 200
MIN_BUCKETS: Final = 5
"""Time buckets each side needs before the spread between them says anything."""
MAX_STRETCHES: Final = 30
MISCOVERAGE: Final = 0.05


class Verdict(enum.StrEnum):
    """What the live comparison says about a champion."""

    WAIT = "wait"
    """Too little traffic on one side."""
    KEEP = "keep"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of one arm on one engine within one time bucket."""

    verify_steps: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    emitted: int
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class Lift:
    """Champion over turbo on the same tenant's concurrent traffic, as ratios (1 is equal)."""

    tau: float
    tau_lower: float
    """Lower end of the 95 % interval, valid at every look at once."""
    tau_upper: float
    goodput: float | None
    """Ratio of output tokens per second of engine time."""
    champion_tau: float
    control_tau: float
    champion_verify_steps: int
    control_verify_steps: int


@dataclass(frozen=True, slots=True)
class Held:
    """What keeps the policy from acting by itself on a tenant."""

    pin: int | None
    freeze: bool


def judge_published(held: Held, version: int, champion: int | None) -> str | None:
    """Say why a version that passed the learner's gate must not be promoted; None: promote it."""
    if held.pin is not None:
        pinned = f"version {held.pin}" if held.pin else "turbo"
        return f"{pinned} is pinned"
    if held.freeze:
        return "the tenant is frozen"
    if champion is not None and version <= champion:
        return f"version {champion} that serves is not older"
    return None


def measure_lift(champion: Sequence[Sample], control: Sequence[Sample]) -> Lift | None:
    """Compare two arms over the same time.

    Args:
        champion: Samples of the champion since it serves, in order of time.
        control: Samples of turbo over the same time, in order of time.

    Returns:
        The lift; None if either side has no verify step yet.
    """
    ours, theirs = _Estimate.of(champion), _Estimate.of(control)
    if ours is None or theirs is None:
        return None
    log_ratio = math.log(ours.tau / theirs.tau)
    error = math.sqrt(ours.variance / ours.tau**2 + theirs.variance / theirs.tau**2)
    # The information in a difference of two means grows with the harmonic combination of their sizes.
    size = 1 / (1 / ours.verify_steps + 1 / theirs.verify_steps)
    radius = error * _widening(size)
    return Lift(
        tau=math.exp(log_ratio),
        tau_lower=math.exp(log_ratio - radius),
        tau_upper=math.exp(min(log_ratio + radius, 700.0)),
        goodput=ours.goodput / theirs.goodput if ours.goodput and theirs.goodput else None,
        champion_tau=ours.tau,
        control_tau=theirs.tau,
        champion_verify_steps=ours.verify_steps,
        control_verify_steps=theirs.verify_steps,
    )


def judge_champion(champion: Sequence[Sample], control: Sequence[Sample]) -> tuple[Verdict, Lift | None]:
    """Decide whether a champion may go on serving.

    It is rolled back only when the whole interval of its lift lies below 1.
    """
    lift = measure_lift(champion, control)
    if lift is None or not enough(lift, champion, control):
        return Verdict.WAIT, lift
    return (Verdict.ROLLBACK if lift.tau_upper < 1 else Verdict.KEEP), lift


def enough(lift: Lift, champion: Sequence[Sample], control: Sequence[Sample]) -> bool:
    """Whether both sides have seen enough traffic for a verdict on their lift."""
    return (
        lift.champion_verify_steps >= MIN_CHAMPION_STEPS
        and lift.control_verify_steps >= MIN_CONTROL_STEPS
        and min(_filled(champion), _filled(control)) >= MIN_BUCKETS
    )


def fallback(retired: Mapping[int, float]) -> int | None:
    """Pick what serves when a champion goes: the version that served last before it, else turbo (None).

    Args:
        retired: Versions that once served and were only replaced -> when each took over last.
    """
    return max(retired, key=lambda version: retired[version], default=None)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Mean acceptance length with the variance of that mean."""

    tau: float
    variance: float
    verify_steps: int
    goodput: float | None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Estimate | None:
        steps = sum(sample.verify_steps for sample in samples)
        if steps == 0:
            return None
        mean = sum(sample.accepted for sample in samples) / steps
        seconds = sum(sample.engine_seconds for sample in samples)
        emitted = sum(sample.emitted for sample in samples)
        return cls(
            tau=1 + mean,
            variance=max(_within(samples, steps, mean), _between(samples, steps, mean)),
            verify_steps=steps,
            goodput=emitted / seconds if seconds > 0 and emitted > 0 else None,
        )


def _within(samples: Sequence[Sample], steps: int, mean: float) -> float:
    """Variance of the mean if verify steps were independent, never zero.

    The accepted length L of a step has E[L^2] = sum over positions i = 1, 2, ... of (2i - 1) P(L >= i).
    """
    second = 0.0
    for sample in samples:
        second += sum((2 * i + 1) * count for i, count in enumerate(sample.accepted_per_position))
    return (max(second / steps - mean**2, 0.0) + 1 / steps) / steps


def _between(samples: Sequence[Sample], steps: int, mean: float) -> float:
    """Variance of the mean from the spread between stretches of time.

    Steps of one request resemble each other, so this is usually the larger one. Neighbouring buckets hold
    parts of the same requests, so many buckets are merged into few stretches; the estimate from few is
    widened as a t distribution is.
    """
    filled = [sample for sample in samples if sample.verify_steps > 0]
    if len(filled) < MIN_BUCKETS:
        return 0.0
    width = -(-len(filled) // MAX_STRETCHES)
    stretches = [filled[first : first + width] for first in range(0, len(filled), width)]
    spread = sum(
        sum(sample.accepted - mean * sample.verify_steps for sample in stretch) ** 2 for stretch in stretches
    )
    return spread / steps**2 * len(stretches) / (len(stretches) - 3)


def _filled(samples: Sequence[Sample]) -> int:
    return sum(sample.verify_steps > 0 for sample in samples)


def _widening(size: float) -> float:
    """Half width of the confidence sequence in standard errors, narrowest at the smallest sizes judged."""
    first = 1 / (1 / MIN_CHAMPION_STEPS + 1 / MIN_CONTROL_STEPS)
    return widening(size / first)


def widening(growth: float) -> float:
    """Half width of the confidence sequence in standard errors.

    Args:
        growth: Size of the sample over the size at which the sequence is narrowest.
    """
    tightest = -2 * math.log(MISCOVERAGE) + math.log(1 - 2 * math.log(MISCOVERAGE))
    scaled = growth * tightest
    return math.sqrt((1 + 1 / scaled) * math.log((scaled + 1) / MISCOVERAGE**2))
