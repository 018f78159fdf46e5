"""Whether an update pays: engine time that a better drafter is expected to save, against the time it costs.

Pure functions of plain numbers, so that a decision can be explained, tested and made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

GAIN_AT_FIRST: Final = 0.15
"""Relative gain in tau expected of a tenant's first update, and of the first one after a drift."""
SECONDS_AT_FIRST: Final = 60.0
"""Cost expected of a tenant's first update."""
TAU_AT_FIRST: Final = 2.0
URGENCY_MOST: Final = 8.0
"""Bounds how long a tenant that waits can be passed over for more urgent ones."""
DRIFT_URGENCY: Final = 4.0


class Outcome(msgspec.Struct, frozen=True):
    """How one update of the tenant ended."""

    at: float
    """Unix seconds."""
    published: bool
    gain: float
    """Relative gain in tau over what served, on its hold-out."""
    seconds: float
    """Of training and evaluation."""


class TrafficState(msgspec.Struct, frozen=True):
    """Everything that decides whether a tenant's next update pays."""

    tokens_per_second: float
    """Answer tokens the tenant has been receiving."""
    tau: float
    """Of what serves it."""
    expected_gain: float
    step_seconds: float
    """Engine time of one of its verify steps."""
    training_seconds: float
    """Expected of the next update, evaluation included."""
    horizon_seconds: float
    """How long the traffic is expected to go on like this."""
    drifted: bool
    """Its acceptance fell against the control group's since the newest update."""


class Payoff(msgspec.Struct, frozen=True):
    """Expected saving and cost of an update."""

    saving_seconds: float
    """Engine time, over the horizon."""
    cost_seconds: float
    urgency: float
    """How many times over it pays, more after a drift, bounded; 0 where it does not."""

    @property
    def pays(self) -> bool:
        """Whether more is saved than spent."""
        return self.saving_seconds > self.cost_seconds


def payoff(state: TrafficState) -> Payoff:
    """Weigh an update: tokens take tokens / tau verify steps, fewer with the gain."""
    steps_saved = state.tokens_per_second * (1 - 1 / (1 + state.expected_gain)) / state.tau
    saving = steps_saved * state.step_seconds * state.horizon_seconds
    cost = state.training_seconds
    ratio = saving / cost if cost > 0 else URGENCY_MOST
    urgency = min(URGENCY_MOST, ratio * (DRIFT_URGENCY if state.drifted else 1.0)) if saving > cost else 0.0
    return Payoff(saving, cost, urgency)


def expected_gain(outcomes: Sequence[Outcome], new_text: float) -> float:
    """Gain to expect of the next update.

    What was published suggests that half as much is left to gain. What was refused halves the expectation,
    unless more text has come since: after n refusals it takes 2**n times the text for the same hope.

    Args:
        outcomes: Of the tenant's updates since its traffic last drifted, oldest first.
        new_text: Answer tokens since the newest update, as a multiple of those that trigger one.
    """
    gain, refusals = GAIN_AT_FIRST, 0
    for outcome in outcomes:
        if outcome.published:
            gain, refusals = max(0.0, outcome.gain) / 2, 0
        else:
            refusals += 1
    return min(gain, gain * 0.5**refusals * max(1.0, new_text))


def spent(outcomes: Sequence[Outcome], since: float) -> float:
    """Seconds of training and evaluation since a moment (Unix seconds)."""
    return sum(outcome.seconds for outcome in outcomes if outcome.at >= since)


def priority(urgency: float, waited: int) -> float:
    """Rank among the tenants that are due: urgency counts, and so does every update of others in between.

    Urgency is bounded and waiting is not, so whoever is due gets its turn: of n tenants, within
    n * URGENCY_MOST updates.
    """
    return urgency + waited
