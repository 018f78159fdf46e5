"""An update is worth its cost, or it waits; whoever is due gets its turn."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.payoff import (
    GAIN_AT_FIRST,
    URGENCY_MOST,
    Outcome,
    TrafficState,
    expected_gain,
    payoff,
    priority,
    spent,
)

BUSY = TrafficState(
    tokens_per_second=50.0,
    tau=2.0,
    expected_gain=0.25,
    step_seconds=0.04,
    training_seconds=60.0,
    horizon_seconds=3600.0,
    drifted=False,
)


def test_the_saving_is_the_verify_steps_that_a_higher_tau_makes_unnecessary() -> None:
    """50 tokens/s at tau 2 take 25 steps/s, at tau 2.5 they take 20: five steps of 40 ms for an hour."""
    weighed = payoff(BUSY)
    assert weighed.saving_seconds == pytest.approx((25 - 20) * 0.04 * 3600)
    assert weighed.cost_seconds == 60
    assert weighed.pays


def test_a_tenant_that_hardly_sends_anything_does_not_pay() -> None:
    """A thousandth of the traffic saves less than training costs, and is not urgent, drift or not."""
    state = msgspec.structs.replace(BUSY, tokens_per_second=0.05, drifted=True)
    assert not payoff(state).pays
    assert payoff(state).urgency == 0


def test_drift_makes_an_update_more_urgent() -> None:
    """The same saving counts four times after a drift, up to the bound."""
    calm = msgspec.structs.replace(BUSY, training_seconds=500.0)
    drifted = msgspec.structs.replace(calm, drifted=True)
    assert payoff(drifted).urgency == pytest.approx(4 * payoff(calm).urgency)
    assert payoff(msgspec.structs.replace(BUSY, tokens_per_second=1e6, drifted=True)).urgency == URGENCY_MOST


@given(
    st.floats(0, 1e4),
    st.floats(1, 9),
    st.floats(0, 5),
    st.floats(1e-4, 1),
    st.floats(0.1, 1e5),
    st.booleans(),
)
def test_more_traffic_or_gain_never_saves_less(
    rate: float, tau: float, gain: float, step: float, cost: float, drifted: bool
) -> None:
    """The saving grows with traffic and gain; urgency stays within its bound and is 0 where nothing pays."""
    state = TrafficState(rate, tau, gain, step, cost, 3600.0, drifted)
    weighed = payoff(state)
    more = payoff(msgspec.structs.replace(state, tokens_per_second=2 * rate, expected_gain=2 * gain))
    assert more.saving_seconds >= weighed.saving_seconds >= 0
    assert 0 <= weighed.urgency <= URGENCY_MOST
    assert (weighed.urgency > 0) == weighed.pays


def outcome(gain: float, *, published: bool, at: float = 0.0, seconds: float = 10.0) -> Outcome:
    """An update that ended."""
    return Outcome(at, published, gain, seconds)


def test_hope_halves_with_every_refusal_and_new_text_brings_it_back() -> None:
    """After three refusals an eighth is expected, and with eight times the text all of it again."""
    refused = [outcome(0.01, published=False)] * 3
    assert expected_gain([], 1.0) == GAIN_AT_FIRST
    assert expected_gain(refused, 1.0) == pytest.approx(GAIN_AT_FIRST / 8)
    assert expected_gain(refused, 8.0) == pytest.approx(GAIN_AT_FIRST)
    assert expected_gain(refused, 100.0) == pytest.approx(GAIN_AT_FIRST)


def test_half_of_the_last_gain_is_expected_next() -> None:
    """A tenant that gained 40 % is expected to gain 20 %, whatever was refused before."""
    history = [outcome(0.0, published=False), outcome(0.4, published=True)]
    assert expected_gain(history, 1.0) == pytest.approx(0.2)


def test_the_quota_counts_refused_updates_too() -> None:
    """All seconds since a moment count, none from before."""
    history = [outcome(0, published=False, at=5, seconds=7), outcome(0.1, published=True, at=20, seconds=11)]
    assert (spent(history, 0), spent(history, 10), spent(history, 21)) == (18, 11, 0)


@given(st.lists(st.floats(0.01, URGENCY_MOST), min_size=1, max_size=12))
def test_no_tenant_that_is_due_starves(urgencies: list[float]) -> None:
    """With everybody always due, each is served within n times the bound of urgency, the least urgent too."""
    waited = [0] * len(urgencies)
    worst = 0
    for _ in range(40 * len(urgencies)):
        chosen = max(range(len(urgencies)), key=lambda i: priority(urgencies[i], waited[i]))
        worst = max(worst, waited[chosen])
        waited = [0 if i == chosen else count + 1 for i, count in enumerate(waited)]
    assert max(worst, *waited) <= len(urgencies) * URGENCY_MOST
