"""Weights over the arms of a tenant from scores of every arm on every trace (full information).

Discounted Hedge (Chernov and Zhdanov, "Prediction with expert advice under discounted loss", arXiv
1005.1918) with the learning rate of AdaHedge (de Rooij, van Erven, Grünwald and Koolen, "Follow the leader if
you can, hedge if you must", arXiv 1301.0534): no rate to tune, quick where one arm is plainly better, careful
where they alternate. The discount forgets old traffic, so that the weights follow a tenant whose traffic
shifts. An arm that a trace has no score of suffers what the mixture does (Freund, Schapire, Singer and
Warmuth, "Using and combining predictors that specialize", 1997).

Pure functions of a state of plain numbers: the same scores in the same order give the same weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

DISCOUNT: Final = 0.99
"""Per trace: what happened 70 traces ago counts half."""


@dataclass(frozen=True, slots=True)
class HedgeState:
    """What is remembered of a tenant's scores.

    Attributes:
        losses: Arm -> discounted sum of its losses, the smallest being 0.
        gap: Discounted sum of the mixability gaps; the learning rate is ln(arms) / gap.
        traces: Scored traces that went in.
    """

    losses: Mapping[str, float] = field(default_factory=dict)
    gap: float = 0.0
    traces: int = 0

    def to_plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {"losses": dict(self.losses), "gap": self.gap, "traces": self.traces}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> HedgeState:
        """Read what `to_plain` wrote."""
        return cls(dict(plain["losses"]), float(plain["gap"]), int(plain["traces"]))


def weights(state: HedgeState) -> dict[str, float]:
    """Weight per arm, summing to 1; empty before the first trace."""
    if not state.losses:
        return {}
    least = min(state.losses.values())
    rate = _rate(state)
    raw = {
        arm: float(loss <= least) if math.isinf(rate) else math.exp(-rate * (loss - least))
        for arm, loss in state.losses.items()
    }
    total = sum(raw.values())
    return {arm: weight / total for arm, weight in raw.items()}


def update(state: HedgeState, losses: Mapping[str, float], discount: float = DISCOUNT) -> HedgeState:
    """Take in one trace.

    Args:
        state: Before it.
        losses: Arm -> loss on the trace, finite, at least one; smaller is better. An arm that is new starts
            level with the worst known one: it has to show that it is better.
        discount: In (0, 1]: factor on everything earlier.

    Raises:
        ValueError: a loss is not finite, or there is none.
    """
    if not losses or not all(math.isfinite(loss) for loss in losses.values()):
        raise ValueError(f"losses must be finite and not empty, got {dict(losses)}")
    start = max(state.losses.values(), default=0.0)
    state = HedgeState(dict.fromkeys(losses, start) | dict(state.losses), state.gap, state.traces)
    before = weights(state)
    awake = sum(before[arm] for arm in losses)
    if awake > 0:
        mean = sum(before[arm] * loss for arm, loss in losses.items()) / awake
    else:
        mean = sum(losses.values()) / len(losses)
    every = {arm: losses.get(arm, mean) for arm in state.losses}
    gap = max(mean - _mix(before, every, _rate(state)), 0.0)
    summed = {arm: discount * loss + every[arm] for arm, loss in state.losses.items()}
    least = min(summed.values())
    return HedgeState(
        {arm: loss - least for arm, loss in summed.items()}, discount * state.gap + gap, state.traces + 1
    )


def keep(state: HedgeState, arms: Collection[str]) -> HedgeState:
    """Forget every arm that is not among `arms`."""
    losses = {arm: loss for arm, loss in state.losses.items() if arm in arms}
    least = min(losses.values(), default=0.0)
    return HedgeState({arm: loss - least for arm, loss in losses.items()}, state.gap, state.traces)


def _rate(state: HedgeState) -> float:
    arms = len(state.losses)
    return math.inf if state.gap <= 0 or arms < 2 else math.log(arms) / state.gap


def _mix(before: Mapping[str, float], losses: Mapping[str, float], rate: float) -> float:
    """Loss of the mixture in exponential terms: -ln(sum of weight * exp(-rate * loss)) / rate."""
    alive = {arm: loss for arm, loss in losses.items() if before[arm] > 0}
    least = min(alive.values())
    if math.isinf(rate):
        return least
    mixed = sum(before[arm] * math.exp(-rate * (loss - least)) for arm, loss in alive.items())
    return least - math.log(mixed) / rate
