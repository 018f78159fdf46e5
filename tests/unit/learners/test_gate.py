"""The gate publishes certain gains and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.gate import MINIMUM_REQUESTS, RequestScore, decide, paired_gain

scores = st.builds(
    lambda steps, extra: RequestScore(steps, steps + extra), st.integers(1, 80), st.integers(0, 200)
)
pairs = st.lists(st.tuples(scores, scores), min_size=MINIMUM_REQUESTS, max_size=40)


def simulated(generator: random.Random, tau: float, lengths: list[int]) -> list[RequestScore]:
    """Scores of a drafter of acceptance length `tau`, with the luck of a walk."""
    return [
        RequestScore(max(1, sum(generator.random() < 1 / tau for _ in range(length))), length)
        for length in lengths
    ]


def publish_share(gain: float, requests: int, rounds: int, seed: int) -> float:
    """Share of simulated challengers of true relative gain `gain` that the gate publishes."""
    generator = random.Random(seed)  # noqa: S311  # reproducible on purpose
    published = 0
    for _ in range(rounds):
        lengths = [min(400, max(8, int(generator.lognormvariate(4.2, 0.7)))) for _ in range(requests)]
        turbo = simulated(generator, 2.6, lengths)
        challenger = simulated(generator, 2.6 * (1 + gain), lengths)
        published += decide(turbo=turbo, champion=None, challenger=challenger).publish
    return published / rounds


@pytest.mark.parametrize("requests", [MINIMUM_REQUESTS, 24])
def test_null_challengers_pass_at_most_as_often_as_the_interval_says(requests: int) -> None:
    """A challenger that is no better passes in at most 2.5 % of cases (within the simulation's error)."""
    rounds = 1500
    error = (0.025 * 0.975 / rounds) ** 0.5
    assert publish_share(0.0, requests, rounds, seed=7) <= 0.025 + 2.5 * error


def test_strong_challengers_pass() -> None:
    """A gain of 30 % over 24 requests is published nearly always."""
    assert publish_share(0.3, 24, 150, seed=8) >= 0.95


def test_worse_challengers_never_pass() -> None:
    """A loss of 10 % is not published in 300 tries."""
    assert publish_share(-0.1, 24, 300, seed=9) == 0


def test_too_few_requests_refuse_whatever_the_gain() -> None:
    """Seven requests of threefold gain are refused, and the reason says how many are needed."""
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
    assert there.lower <= there.estimate <= there.upper
    assert (1 + there.lower) * (1 + back.upper) == pytest.approx(1)
    assert (1 + there.estimate) * (1 + back.estimate) == pytest.approx(1)


@given(st.lists(scores, min_size=MINIMUM_REQUESTS, max_size=40))
def test_an_equal_challenger_is_refused(drawn: list[RequestScore]) -> None:
    """What equals the drafter that serves is never published."""
    assert not decide(turbo=drawn, champion=None, challenger=drawn).publish
