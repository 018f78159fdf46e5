"""The gate publishes certain gains and nothing else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.gate import MINIMUM_REQUESTS, RequestScore, decide, paired_gain

if TYPE_CHECKING:
    from collections.abc import Sequence

scores = st.builds(
    lambda steps, extra: RequestScore(steps, steps + extra), st.integers(1, 80), st.integers(0, 200)
)
pairs = st.lists(st.tuples(scores, scores), min_size=MINIMUM_REQUESTS, max_size=40)


def simulated(generator: np.random.Generator, tau: float, lengths: Sequence[int]) -> list[RequestScore]:
    """Scores of a drafter of acceptance length `tau`, with the luck of a walk."""
    steps = np.maximum(1, generator.binomial(lengths, 1 / tau)).tolist()
    return [RequestScore(step, length) for step, length in zip(steps, lengths, strict=True)]


def drawn_lengths(generator: np.random.Generator, requests: int, spread: float) -> list[int]:
    """Answer lengths around 67 tokens, log-normal."""
    drawn: list[int] = np.clip(generator.lognormal(4.2, spread, requests), 8, 1000).astype(int).tolist()
    return drawn


def publish_share(gain: float, requests: int, rounds: int, seed: int, spread: float = 0.7) -> float:
    """Share of simulated challengers of true relative gain `gain` that the gate publishes."""
    generator = np.random.default_rng(seed)
    published = 0
    for _ in range(rounds):
        lengths = drawn_lengths(generator, requests, spread)
        turbo = simulated(generator, 2.6, lengths)
        challenger = simulated(generator, 2.6 * (1 + gain), lengths)
        published += decide(turbo=turbo, champion=None, challenger=challenger).publish
    return published / rounds


@pytest.mark.parametrize(("requests", "spread"), [(MINIMUM_REQUESTS, 0.7), (24, 0.7), (24, 1.2)])
def test_of_challengers_that_are_no_better_at_most_one_in_forty_passes(requests: int, spread: float) -> None:
    """Of 10,000 challengers as good as what serves 2.5 % pass at most, among very unequal requests too."""
    assert publish_share(0.0, requests, 10_000, seed=7, spread=spread) <= 0.025


class Repeated:
    """One tenant whose gate is asked again whenever a few more requests have arrived.

    Args:
        arrivals: Requests between two looks.
        retried: Whether the challenger is the same each time, its luck on a request included, or a new one.
    """

    def __init__(self, generator: np.random.Generator, *, arrivals: int, retried: bool) -> None:
        self._generator, self._arrivals, self._retried = generator, arrivals, retried
        self._turbo: list[RequestScore] = []
        self._challenger: list[RequestScore] = []
        self._looked = 0

    def look(self, holdout: int) -> bool:
        """Let requests arrive and judge by the newest; whether the challenger passes."""
        arriving = self._arrivals if self._turbo else holdout
        drawn = drawn_lengths(self._generator, arriving, 0.7)
        self._turbo += simulated(self._generator, 2.6, drawn)
        known = [score.emitted for score in self._turbo]
        redrawn = drawn if self._retried else known
        self._challenger = self._challenger[: len(known) - len(redrawn)] + simulated(
            self._generator, 2.6, redrawn
        )
        fresh = (len(self._turbo) - self._looked) / holdout
        self._looked = len(self._turbo)
        return decide(
            turbo=self._turbo[-holdout:],
            champion=None,
            challenger=self._challenger[-holdout:],
            fresh=fresh,
        ).publish


@pytest.mark.parametrize("retried", [False, True])
def test_looking_again_at_a_moving_holdout_lets_no_more_of_them_pass(*, retried: bool) -> None:
    """Of 1,000 looks at hold-outs that overlap by three quarters, at most 25 publish an equal challenger."""
    generator = np.random.default_rng(11)
    tenants = [Repeated(generator, arrivals=6, retried=retried) for _ in range(100)]
    passed = [[tenant.look(24) for _ in range(10)] for tenant in tenants]
    assert sum(map(sum, passed)) <= 25
    worth = (24 + 9 * 6) / 24
    error = (0.025 * worth / 100) ** 0.5
    assert sum(map(any, passed)) / 100 <= 0.025 * worth + error, "per hold-out's worth of requests"


def test_a_request_that_judged_once_has_no_more_to_say() -> None:
    """A second look at the same hold-out publishes nothing, however large the gain seems."""
    turbo = [RequestScore(60 + i % 3, 120) for i in range(24)]
    challenger = [RequestScore(30 + i % 3, 120) for i in range(24)]
    assert decide(turbo=turbo, champion=None, challenger=challenger, fresh=1.0).publish
    assert decide(turbo=turbo, champion=None, challenger=challenger, fresh=0.25).publish
    verdict = decide(turbo=turbo, champion=None, challenger=challenger, fresh=0.0)
    assert not verdict.publish
    assert "100% judged earlier challengers" in verdict.reason


def test_one_giant_request_is_no_crowd() -> None:
    """Where one request holds nearly all verify steps, a gain on it alone is not certain."""
    turbo = [RequestScore(9_000, 18_000)] + [RequestScore(4, 8 + i % 2) for i in range(23)]
    challenger = [RequestScore(6_000, 18_000), *turbo[1:]]
    assert not decide(turbo=turbo, champion=None, challenger=challenger).publish


def test_strong_challengers_pass() -> None:
    """A gain of 30 % over 24 requests is published nearly always."""
    assert publish_share(0.3, 24, 150, seed=8) >= 0.95


def test_worse_challengers_never_pass() -> None:
    """A loss of 10 % is not published in 300 tries."""
    assert publish_share(-0.1, 24, 300, seed=9) == 0


def test_too_few_requests_refuse_whatever_the_gain() -> None:
    """Eleven requests of threefold gain are refused, and the reason says how many are needed."""
    turbo = [RequestScore(30, 30)] * (MINIMUM_REQUESTS - 1)
    challenger = [RequestScore(10, 30)] * (MINIMUM_REQUESTS - 1)
    verdict = decide(turbo=turbo, champion=None, challenger=challenger)
    assert not verdict.publish
    assert f"at least {MINIMUM_REQUESTS}" in verdict.reason


def test_pairing_sees_a_small_steady_gain_between_very_different_requests() -> None:
    """A gain of 5 % on each of 12 requests passes although their acceptance lengths range from 1.2 to 4."""
    turbo = [RequestScore(200, int(200 * (1.2 + 0.25 * i))) for i in range(12)]
    challenger = [RequestScore(int(score.verify_steps / 1.05), score.emitted) for score in turbo]
    assert decide(turbo=turbo, champion=None, challenger=challenger).publish
    shuffled = [RequestScore(score.verify_steps, score.emitted) for score in challenger[::-1]]
    assert not decide(turbo=turbo, champion=None, challenger=shuffled).publish


def test_the_champion_is_what_a_challenger_must_beat() -> None:
    """A challenger that beats turbo but only equals the champion is refused."""
    turbo = [RequestScore(40 + i, 90) for i in range(12)]
    champion = [RequestScore(30 + i, 90) for i in range(12)]
    verdict = decide(turbo=turbo, champion=champion, challenger=champion)
    assert not verdict.publish
    assert "the champion" in verdict.reason
    assert verdict.over_turbo.lower > 0


def test_a_lost_champion_does_not_let_a_challenger_below_turbo_pass() -> None:
    """A challenger that beats the champion and not turbo is refused."""
    turbo = [RequestScore(30 + i, 90) for i in range(12)]
    champion = [RequestScore(60 + i, 90) for i in range(12)]
    challenger = [RequestScore(40 + i, 90) for i in range(12)]
    verdict = decide(turbo=turbo, champion=champion, challenger=challenger)
    assert not verdict.publish
    assert "over turbo" in verdict.reason


def test_unpaired_scores_are_an_error() -> None:
    """Scores of different hold-outs cannot be compared."""
    with pytest.raises(ValueError, match="same hold-out"):
        paired_gain([RequestScore(1, 1)], [])


@given(pairs)
def test_swapping_the_drafters_inverts_the_interval(drawn: list[tuple[RequestScore, RequestScore]]) -> None:
    """The interval of b over a is the reciprocal of that of a over b, and holds the estimate."""
    first, second = [one for one, _ in drawn], [two for _, two in drawn]
    there, back = paired_gain(first, second), paired_gain(second, first)
    if math.isinf(there.upper):  # one request outweighs all others: nothing can be said either way
        assert there.lower == back.lower == -1
        return
    assert there.lower <= there.estimate <= there.upper
    assert (1 + there.lower) * (1 + back.upper) == pytest.approx(1)
    assert (1 + there.estimate) * (1 + back.estimate) == pytest.approx(1)


@given(st.lists(scores, min_size=MINIMUM_REQUESTS, max_size=40))
def test_an_equal_challenger_is_refused(drawn: list[RequestScore]) -> None:
    """What equals the drafter that serves is never published."""
    assert not decide(turbo=drawn, champion=None, challenger=drawn).publish
