"""Whether speculation pays for a batch, and the floor that acts on it."""

from __future__ import annotations

import itertools

import pytest

from adaptive.engine.lookahead import (
    OFF_AFTER,
    PROBE_AFTER,
    PROBE_AT_MOST,
    PROBE_STEPS,
    LoadFloor,
    Outlook,
    marginal_seconds,
)
from tests.unit.engine.harness import costs

ROUNDS = 20


def outlook(*survivals: float, most: int = 4) -> Outlook:
    """One that saw the same curve throughout, of tenant `acme`."""
    made = Outlook(most)
    for _ in range(ROUNDS):
        made.note("acme", survivals)
    return made


def test_nothing_seen_is_taken_for_a_good_head() -> None:
    """A new engine speculates at first, or it would never learn whether that pays."""
    forecast = Outlook(4).forecast(costs(), {"new": 1}, 1, 100)
    assert forecast.speedup > 1.5
    assert forecast.rate > forecast.plain_rate


def test_sure_drafts_pay_while_tokens_are_cheap() -> None:
    """Alone, four sure drafts give five tokens for one step and four passes."""
    forecast = outlook(1.0, 1.0, 1.0, 1.0).forecast(costs(token_seconds=0.0), {"acme": 1}, 1, 100)
    assert forecast.drafts == pytest.approx(4)
    assert forecast.rate == pytest.approx(5 / (0.1 + 0.01 + 3 * 0.005), rel=0.01)


def test_a_full_machine_has_nothing_to_give_to_doubtful_drafts() -> None:
    """Where a token more costs as much as a token costs on average, only certainty would pay."""
    dear = costs(token_seconds=0.1)
    assert outlook(0.6, 0.36, 0.2, 0.1).forecast(dear, {"acme": 32}, 32, 100).speedup < 1
    assert outlook(0.6, 0.36, 0.2, 0.1).forecast(costs(0.0001), {"acme": 32}, 32, 100).speedup > 1.3


def test_a_pass_that_no_row_needs_is_not_paid_for() -> None:
    """Where only the first draft is good, the later passes are neither run nor counted."""
    forecast = outlook(0.9, 0.01, 0.0, 0.0).forecast(costs(token_seconds=0.0), {"acme": 1}, 1, 100)
    assert forecast.rate == pytest.approx(1.9 / 0.11, rel=0.01)


def test_requests_that_may_not_draft_dilute_the_gain() -> None:
    """They are in the step and earn one token each, whatever the others do."""
    seen = outlook(0.9, 0.8, 0.7, 0.6)
    alone = seen.forecast(costs(), {"acme": 2}, 2, 100).speedup
    among = seen.forecast(costs(), {"acme": 2}, 10, 100).speedup
    assert 1 < among < alone
    assert seen.forecast(costs(), {}, 10, 100).speedup == 1


def test_tenants_are_seen_apart_and_forgotten() -> None:
    """One tenant's curves say nothing of another's, and go with it."""
    seen = outlook(0.0, 0.0, 0.0, 0.0)
    assert seen.forecast(costs(), {"acme": 1}, 1, 100).speedup <= 1
    assert seen.forecast(costs(), {"other": 1}, 1, 100).speedup > 1
    seen.forget("acme")
    assert seen.forecast(costs(), {"acme": 1}, 1, 100).speedup > 1


def test_old_curves_make_room() -> None:
    """A tenant whose traffic changed is seen as it is now."""
    seen = outlook(0.0, 0.0, 0.0, 0.0)
    for _ in range(64):
        seen.note("acme", (0.9, 0.8, 0.7, 0.6))
    assert seen.forecast(costs(), {"acme": 1}, 1, 100).speedup > 1.5


def test_tenants_are_bounded() -> None:
    """Memory does not grow with the tenants ever seen."""
    seen = Outlook(4)
    for number in range(3000):
        seen.note(f"tenant-{number}", (0.5, 0.2))
    assert len(seen._curves) <= 1024


def test_a_token_more_costs_its_slope_and_its_attention() -> None:
    """The average over the tokens that are about to be added."""
    assert marginal_seconds(costs(0.002), 4, 0.0, 8) == pytest.approx(0.002)
    assert marginal_seconds(costs(0.002), 4, 1e6, 8) == pytest.approx(0.002 + 1e6 * 1e-9)


def test_the_floor_waits_before_it_goes_off_and_is_quick_to_come_back() -> None:
    """A few bad steps do nothing; a gain brings speculation back with the next step."""
    floor = LoadFloor()
    for _ in range(10):
        assert not any(floor.step(0.9) for _ in range(OFF_AFTER - 1))
        assert not floor.step(1.2)
    assert [floor.step(0.9) for _ in range(OFF_AFTER)][-1]
    assert floor.step(1.01), "a gain within the noise is none"
    assert not floor.step(1.1)


def test_a_floor_that_is_off_tries_again_and_less_often_the_longer_it_fails() -> None:
    """Estimates are refreshed by short trials; their share of the steps falls to a thousandth and less."""
    floor = LoadFloor()
    steps = [floor.step(0.9) for _ in range(40_000)]
    waits = [len(list(run)) for off, run in itertools.groupby(steps) if off]
    trials = [len(list(run)) for off, run in itertools.groupby(steps) if not off][1:]
    assert waits[:3] == [PROBE_AFTER, 2 * PROBE_AFTER, 4 * PROBE_AFTER]
    assert max(waits) == PROBE_AT_MOST
    assert set(trials[:-1]) == {PROBE_STEPS}


def test_a_trial_that_finds_a_gain_stays_on() -> None:
    """And the next time off is tried again as soon as the first time."""
    floor = LoadFloor()
    while not floor.step(0.9):
        pass
    while floor.step(0.9):
        pass
    assert not any(floor.step(1.5) for _ in range(100))
    while not floor.step(0.9):
        pass
    assert sum(1 for _ in itertools.takewhile(lambda _: floor.step(0.9), range(10_000))) == PROBE_AFTER - 1
