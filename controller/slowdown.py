"""An engine that became slower by itself, told apart from a drafter that became worse.

An engine's telemetry holds the seconds of target steps by their tokens, which every step corrects, those of
control requests included, whatever drafts and however many requests there are. When they rise, the control
traffic is as slow as the champion's: no drafter is to blame. Pure functions of plain numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

KNOTS: Final = (1, 2, 4, 8, 16)
"""Scheduled tokens of the steps compared: those that decoding makes."""
SLOWER: Final = 1.3
RECOVERED: Final = 1.15
REPORTS: Final = 5
"""In a row before an alert is raised or cleared."""
BASELINE_RATE: Final = 0.01
"""How fast the baseline follows reports that are not slow: hardware may change within the hour."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What is known of an engine's speed.

    Attributes:
        baseline: Seconds of a step, as usual.
        slow: Reports in a row that were slow (positive) or were not (negative).
        ratio: The newest report's seconds over the baseline.
        alert: Whether the engine is slower than usual.
    """

    baseline: float
    slow: int = 0
    ratio: float = 1.0
    alert: bool = False


def step_seconds(target: Mapping[int, float]) -> float | None:
    """Geometric mean over KNOTS of an engine's step seconds; None where the report does not hold them."""
    found = [target[knot] for knot in KNOTS if target.get(knot, 0.0) > 0]
    if len(found) < len(KNOTS):
        return None
    return math.exp(sum(map(math.log, found)) / len(found))


def observe(speed: Speed | None, seconds: float) -> Speed:
    """Take in a report; the baseline stands still while the engine is slow."""
    if speed is None:
        return Speed(seconds)
    ratio = seconds / speed.baseline
    slow = ratio > (RECOVERED if speed.alert else SLOWER)
    row = (max(speed.slow, 0) + 1) if slow else (min(speed.slow, 0) - 1)
    alert = (row < REPORTS and -row < REPORTS and speed.alert) or row >= REPORTS
    baseline = speed.baseline
    if not slow and not alert:
        baseline *= ratio**BASELINE_RATE
    return Speed(baseline, row, ratio, alert)
