"""The policy as pure functions."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.policy import (
    MIN_BUCKETS,
    MIN_CHAMPION_STEPS,
    MIN_CONTROL_STEPS,
    Held,
    Sample,
    Verdict,
    fallback,
    judge_champion,
    judge_published,
    measure_lift,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOKAHEAD = 4


def sample(steps: int, shares: tuple[int, ...]) -> Sample:
    """Counts that an engine could report: of each position's accepted drafts some share is accepted next."""
    positions: list[int] = []
    for share in shares:
        positions.append((positions[-1] if positions else steps) * share // 100)
    accepted = sum(positions)
    return Sample(steps, LOOKAHEAD * steps, accepted, tuple(positions), accepted + steps, steps / 20)


shares = st.tuples(*[st.integers(0, 100)] * LOOKAHEAD)
series = st.lists(st.builds(sample, st.integers(0, 300), shares), max_size=12)
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def traffic(rng: random.Random, chance: float, requests: int, steps: int = 30) -> Sample:
    """Simulate requests whose chance of acceptance varies from one to the next, as real ones' does."""
    positions = [0] * LOOKAHEAD
    for _ in range(requests):
        own = min(max(rng.gauss(chance, 0.1), 0.02), 0.97)
        for _ in range(steps):
            for position in range(LOOKAHEAD):
                if rng.random() >= own:
                    break
                positions[position] += 1
    count = requests * steps
    return Sample(
        count, LOOKAHEAD * count, sum(positions), tuple(positions), sum(positions) + count, count / 20
    )


def rolled_back_after(seed: int, champion: float, control: float, rounds: int) -> int | None:
    """Look after every round of 12 champion requests and 1 control request; requests until the rollback."""
    rng = random.Random(seed)  # noqa: S311  a simulation
    ours: list[Sample] = []
    theirs: list[Sample] = []
    for number in range(1, rounds + 1):
        ours.append(traffic(rng, champion, 12))
        theirs.append(traffic(rng, control, 1))
        if judge_champion(ours, theirs)[0] is Verdict.ROLLBACK:
            return number * 13
    return None


@relaxed
@given(series, series)
def test_lift_is_the_ratio_of_acceptance_lengths(ours: Sequence[Sample], theirs: Sequence[Sample]) -> None:
    """The interval holds the ratio, is finite, and exchanging the sides inverts it."""
    lift, inverse = measure_lift(ours, theirs), measure_lift(theirs, ours)
    if not sum(item.verify_steps for item in ours) or not sum(item.verify_steps for item in theirs):
        assert lift is None
        assert inverse is None
        return
    assert lift is not None
    assert inverse is not None
    assert lift.tau == pytest.approx(lift.champion_tau / lift.control_tau)
    assert 0 <= lift.tau_lower < lift.tau < lift.tau_upper < math.inf
    assert lift.tau * inverse.tau == pytest.approx(1)
    assert lift.tau_lower * inverse.tau_upper == pytest.approx(1)


@relaxed
@given(series, series)
def test_a_champion_is_rolled_back_only_on_clear_evidence(
    ours: Sequence[Sample], theirs: Sequence[Sample]
) -> None:
    """Never before both sides have enough traffic, and never one that does as well as turbo or better."""
    verdict, lift = judge_champion(ours, theirs)
    if verdict is Verdict.ROLLBACK:
        assert lift is not None
        assert lift.champion_tau < lift.control_tau
        assert lift.tau_upper < 1
        assert lift.champion_verify_steps >= MIN_CHAMPION_STEPS
        assert lift.control_verify_steps >= MIN_CONTROL_STEPS
        assert min(sum(item.verify_steps > 0 for item in side) for side in (ours, theirs)) >= MIN_BUCKETS


@relaxed
@given(series)
def test_turbo_against_itself_is_kept(both: Sequence[Sample]) -> None:
    """The same traffic on both sides has a lift of 1 and is never a reason to act."""
    verdict, lift = judge_champion(both, both)
    assert verdict is not Verdict.ROLLBACK
    assert lift is None or lift.tau == pytest.approx(1)


def test_an_equal_champion_is_kept_at_every_look() -> None:
    """Looking 60 times at a champion as good as turbo rolls back far fewer than 5 in 100."""
    runs = [rolled_back_after(seed, 0.6, 0.6, 60) for seed in range(40)]
    assert sum(run is not None for run in runs) <= 2


@pytest.mark.parametrize(("chance", "most"), [(0.02, 130), (0.3, 200), (0.45, 520)])
def test_a_worse_champion_goes_and_the_worse_the_sooner(chance: float, most: int) -> None:
    """A champion below turbo's 0.6 per position is rolled back within a bounded number of requests."""
    for seed in range(5):
        requests = rolled_back_after(seed, chance, 0.6, 60)
        assert requests is not None
        assert requests <= most


def test_a_published_version_is_promoted_unless_held() -> None:
    """A pin, a freeze or a newer champion keeps a version from being promoted, with the reason."""
    free = Held(pin=None, freeze=False)
    assert judge_published(free, 1, None) is None
    assert judge_published(free, 2, 1) is None
    assert judge_published(free, 1, 2) == "version 2 that serves is not older"
    assert judge_published(Held(pin=3, freeze=False), 4, 3) == "version 3 is pinned"
    assert judge_published(Held(pin=0, freeze=False), 4, None) == "turbo is pinned"
    assert judge_published(Held(pin=None, freeze=True), 4, None) == "the tenant is frozen"


@relaxed
@given(st.dictionaries(st.integers(1, 50), st.floats(0, 1e9), max_size=8))
def test_fallback_is_what_served_last(retired: dict[int, float]) -> None:
    """The successor of a champion is the retired version promoted last, or turbo if none ever served."""
    chosen = fallback(retired)
    if not retired:
        assert chosen is None
    else:
        assert chosen is not None
        assert retired[chosen] == max(retired.values())
