"""Policies walked over recorded scores: what each would have earned, against the best fixed arm in hindsight.

Hedge sees the score of every arm on every trace, as it does in service. The bandits (River's) see only the
arm that they pulled, as a controller without scores of all arms would.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from controller import hedge
from controller.goodput import TURBO, losses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EPSILON: Final = 0.1


@dataclass(frozen=True, slots=True)
class ScoredTrace:
    """One trace.

    Attributes:
        tokens: Tokens it emitted.
        seconds: Arm -> seconds per token.
    """

    tokens: int
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy earned.

    Attributes:
        goodput: Tokens per second.
        regret: Share of the best fixed arm's goodput that it missed; negative where it did better.
    """

    goodput: float
    regret: float


class Policy(Protocol):
    """Chooses before a trace, learns after it."""

    def shares(self, arms: Sequence[str]) -> Mapping[str, float]:
        """Arm -> probability that it serves the next trace."""

    def learn(self, trace: ScoredTrace, served: Mapping[str, float]) -> None:
        """Take in what happened; `served` is what `shares` said."""


class Hedge:
    """The policy in service."""

    def __init__(self, discount: float = hedge.DISCOUNT) -> None:
        self._state = hedge.HedgeState()
        self._discount = discount

    def shares(self, arms: Sequence[str]) -> Mapping[str, float]:
        """The weights; before the first trace turbo serves, as for every new tenant."""
        return hedge.weights(self._state) or {TURBO if TURBO in arms else arms[0]: 1.0}

    def learn(self, trace: ScoredTrace, served: Mapping[str, float]) -> None:
        """Every arm's score counts."""
        del served
        self._state = hedge.update(self._state, losses(trace.seconds), self._discount)


class Fixed:
    """Always the same arm."""

    def __init__(self, arm: str) -> None:
        self._arm = arm

    def shares(self, arms: Sequence[str]) -> Mapping[str, float]:
        """That arm."""
        del arms
        return {self._arm: 1.0}

    def learn(self, trace: ScoredTrace, served: Mapping[str, float]) -> None:
        """Nothing to learn."""


class Bandit:
    """A bandit of River; its reward is 1 - loss, of the arm it pulled alone.

    Args:
        bandit: With `pull(arms)` and `update(arm, reward)`.
        draw: Turns the reward into a success or a failure, for a bandit that counts those (Agrawal and Goyal,
            "Analysis of Thompson sampling for the multi-armed bandit problem", arXiv 1111.1797, section 1).
    """

    def __init__(self, bandit: Any, draw: Callable[[], float] | None = None) -> None:
        self._bandit = bandit
        self._draw = draw

    def shares(self, arms: Sequence[str]) -> Mapping[str, float]:
        """The arm it pulls."""
        return {self._bandit.pull(list(arms)): 1.0}

    def learn(self, trace: ScoredTrace, served: Mapping[str, float]) -> None:
        """The pulled arm's reward."""
        (arm,) = served
        reward = 1 - losses(trace.seconds)[arm]
        self._bandit.update(arm, reward if self._draw is None else self._draw() < reward)


def policies(seed: int) -> dict[str, Policy]:
    """Every policy that is compared, new."""
    from river import bandit, proba, stats  # noqa: PLC0415  loads slowly

    chance = random.Random(seed)  # noqa: S311  a simulation
    return {
        "hedge": Hedge(),
        "epsilon-greedy": Bandit(
            bandit.EpsilonGreedy(EPSILON, reward_obj=stats.Mean(), burn_in=1, seed=seed)
        ),
        "UCB": Bandit(bandit.UCB(1.0, reward_obj=stats.Mean(), burn_in=1, seed=seed)),
        "Thompson": Bandit(bandit.ThompsonSampling(proba.Beta(), seed=seed), chance.random),
    }


def compare(traces: Sequence[ScoredTrace], candidates: Mapping[str, Policy]) -> dict[str, Outcome]:
    """Walk every policy, and every fixed arm, over the same traces.

    Args:
        traces: In order of time, at least one; all with the same arms.
        candidates: Name -> policy.

    Returns:
        Name -> outcome; the fixed arms are named `always` and the arm.

    Raises:
        ValueError: there is no trace, or two differ in their arms.
    """
    if not traces:
        raise ValueError("no scored trace to replay")
    arms = sorted(traces[0].seconds)
    if any(sorted(trace.seconds) != arms for trace in traces):
        raise ValueError("traces with different arms cannot be compared: replay versions one by one")
    tokens = sum(trace.tokens for trace in traces)
    everyone: dict[str, Policy] = {**candidates, **{f"always {arm}": Fixed(arm) for arm in arms}}
    seconds = dict.fromkeys(everyone, 0.0)
    for trace in traces:
        for name, policy in everyone.items():
            shares = policy.shares(arms)
            seconds[name] += trace.tokens * sum(trace.seconds[arm] * share for arm, share in shares.items())
            policy.learn(trace, shares)
    best = min(seconds[f"always {arm}"] for arm in arms)
    return {name: Outcome(tokens / spent, 1 - best / spent) for name, spent in seconds.items()}
