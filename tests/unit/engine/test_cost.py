"""The cost model: what was profiled, what measured steps make of it, and what they do not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.engine.cost import KNOTS, CostModel, Curve


def model(per_pair: float = 0.0) -> CostModel:
    """A step takes 0.1 s and 1 ms a token more; passes take 10 and 5 ms."""
    return CostModel({1: 0.1, 101: 0.2}, {1: 0.01, 100: 0.01}, {1: 0.005, 100: 0.005}, per_pair)


def test_a_curve_goes_through_its_points_and_on_beyond() -> None:
    """Between points it is linear; behind the last the last slope goes on; nothing costs nothing."""
    curve = Curve({1: 0.1, 8: 0.1, 16: 0.2})
    assert [curve(count) for count in (0, 1, 4, 8, 12, 16)] == pytest.approx([0, 0.1, 0.1, 0.1, 0.15, 0.2])
    assert curve(32) == pytest.approx(0.4)
    assert curve(2 * KNOTS[-1]) == pytest.approx(0.2 + (2 * KNOTS[-1] - 16) * 0.0125)


def test_a_profile_that_falls_is_noise() -> None:
    """More tokens never cost less."""
    curve = Curve({1: 0.1, 2: 0.08, 4: 0.2})
    assert curve(2) == pytest.approx(0.1)


@given(
    st.lists(
        st.tuples(st.integers(1, 600), st.floats(1e-4, 10.0)),
        max_size=200,
    )
)
def test_measured_steps_never_make_more_tokens_cheaper(steps: list[tuple[int, float]]) -> None:
    """Whatever is measured, the curve does not fall and stays positive."""
    costs = model()
    for tokens, seconds in steps:
        costs.observe_target(tokens, 0.0, seconds)
    values = [costs.target_seconds(tokens) for tokens in range(1, 600)]
    assert values[0] > 0
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(values))


def test_a_slower_machine_makes_everything_slower() -> None:
    """Steps of one size alone show that the machine slowed down: other sizes and passes follow."""
    costs = model()
    for _ in range(200):
        costs.observe_target(4, 0.0, 2 * 0.103)
    assert costs.target_seconds(4) == pytest.approx(0.206, rel=0.05)
    assert costs.target_seconds(64) > 1.4 * model().target_seconds(64)
    assert costs.next_pass_seconds(1) > 1.4 * 0.005


def test_sizes_that_cost_more_than_profiled_are_corrected() -> None:
    """Two sizes measured in turn end where they were measured, not on the profile's line."""
    costs = model()
    for _ in range(600):
        costs.observe_target(1, 0.0, 0.1)
        costs.observe_target(8, 0.0, 0.2)
    assert costs.target_seconds(1) == pytest.approx(0.1, rel=0.05)
    assert costs.target_seconds(8) == pytest.approx(0.2, rel=0.05)


def test_one_outlier_is_ignored_and_many_are_not() -> None:
    """A step that the machine was away for says nothing; a machine that stays slow is believed."""
    costs = model()
    before = costs.target_seconds(4)
    costs.observe_target(4, 0.0, 5.0)
    assert costs.target_seconds(4) == before
    for _ in range(200):
        costs.observe_target(4, 0.0, 5.0)
    assert costs.target_seconds(4) > 10 * before


def test_attention_costs_by_context() -> None:
    """A token more costs more behind a long context."""
    costs = model(per_pair=1e-6)
    assert costs.token_seconds(4000) == pytest.approx(0.004)
    assert costs.target_seconds(1, 4000) == pytest.approx(0.104)
    for _ in range(500):
        costs.observe_target(1, 4000.0, 0.1)
        costs.observe_target(1, 20_000.0, 0.2)
    assert costs.target_seconds(1, 20_000.0) == pytest.approx(0.2, rel=0.15)


def test_time_between_steps_is_paid_by_every_step() -> None:
    """The engine's own time per step is added whatever the step's size; one long pause hardly counts."""
    costs = model()
    for _ in range(300):
        costs.observe_gap(0.004)
    assert costs.target_seconds(1) == pytest.approx(0.104, rel=0.01)
    costs.observe_gap(60.0)
    assert costs.target_seconds(1) < 0.106


def test_passes_are_corrected_by_batch_size() -> None:
    """Measured passes move their own curves."""
    costs = model()
    for _ in range(400):
        costs.observe_first_pass(4, 0.02)
        costs.observe_next_pass(4, 0.02)
    assert costs.first_pass_seconds(4) == pytest.approx(0.02, rel=0.1)
    assert costs.next_pass_seconds(4) == pytest.approx(0.02, rel=0.1)
    assert costs.info()["observed"] == 0
