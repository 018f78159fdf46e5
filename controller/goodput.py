"""Seconds that each arm needs for a trace: what it accepts by its score, at what the engine's steps cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adaptive.contracts import ArmScore, ArmScored

OFF: Final = Arm.OFF.value
TURBO: Final = Arm.TURBO.value


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a request's verify step costs, in seconds.

    Attributes:
        plain: A step without drafts.
        draft: Each draft token: its pass of the drafter and its verification.
    """

    plain: float
    draft: float

    @classmethod
    def at_load(cls, target: Mapping[int, float], draft_pass: float, rows: int, lookahead: int) -> StepCosts:
        """Share of one of `rows` requests in steps of an engine.

        Args:
            target: Scheduled tokens -> seconds of a target step, at least one.
            draft_pass: Seconds of a drafter pass over `rows` requests.
            rows: Requests in a step, at least 1.
            lookahead: Draft tokens per request that the cost of one is averaged over, at least 1.
        """
        plain = interpolate(target, rows)
        verify = (interpolate(target, rows * (1 + lookahead)) - plain) / lookahead
        return cls(plain / rows, (verify + draft_pass) / rows)


def interpolate(curve: Mapping[int, float], count: float) -> float:
    """Seconds at `count` of a piecewise linear curve; beyond its ends the nearest slope goes on."""
    points = sorted(curve.items())
    if len(points) == 1:
        return points[0][1]
    index = 1
    while index < len(points) - 1 and points[index][0] < count:
        index += 1
    (left, low), (right, high) = points[index - 1], points[index]
    return low + (high - low) * (count - left) / (right - left)


def arm_name(score: ArmScore) -> str:
    """`turbo`, or `adapter@3`."""
    return f"{score.arm.value}@{score.version}" if score.version else score.arm.value


def arm_seconds(scored: ArmScored, costs: StepCosts) -> dict[str, float]:
    """Arm -> seconds per token it emitted on the trace, `off` included; empty where nothing was verified."""
    found = {
        arm_name(score): (score.verify_steps * costs.plain + score.drafted * costs.draft)
        / (score.verify_steps + score.accepted)
        for score in scored.scores
        if score.verify_steps > 0
    }
    return {OFF: costs.plain} | found if found else {}


def losses(seconds: Mapping[str, float]) -> dict[str, float]:
    """Arm -> seconds lost to the trace's best arm, as a share of the slowest arm's seconds: in [0, 1]."""
    best, worst = min(seconds.values()), max(seconds.values())
    return {arm: (value - best) / worst if worst > 0 else 0.0 for arm, value in seconds.items()}
