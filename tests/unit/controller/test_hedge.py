"""Weights over arms, goodput and replay as pure functions."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.contracts import Arm, ArmScore, ArmScored
from controller import hedge
from controller.goodput import StepCosts, arm_seconds, losses
from controller.replaying import ScoredTrace, compare, policies

ARMS = ("off", "turbo", "adapter@1")
loss_rows = st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=80)


def run(rows: list[tuple[float, ...]], discount: float = hedge.DISCOUNT) -> tuple[hedge.HedgeState, float]:
    """The state after some traces, and what the mixture lost on them."""
    state, lost = hedge.HedgeState(), 0.0
    for row in rows:
        told = dict(zip(ARMS, row, strict=True))
        shares = hedge.weights(state) or dict.fromkeys(ARMS, 1 / 3)
        lost += sum(shares[arm] * loss for arm, loss in told.items())
        state = hedge.update(state, told, discount)
    return state, lost


@settings(deadline=None)
@given(loss_rows)
def test_weights_are_a_distribution_whose_largest_is_the_best_arm(rows: list[tuple[float, ...]]) -> None:
    """Whatever the losses: positive, summing to 1, ordered as the discounted losses are."""
    state, _ = run(rows)
    weights = hedge.weights(state)
    assert sum(weights.values()) == pytest.approx(1)
    assert min(weights.values()) >= 0
    assert weights[min(state.losses, key=lambda arm: state.losses[arm])] == max(weights.values())


@settings(deadline=None)
@given(loss_rows)
def test_undiscounted_regret_stays_below_the_bound_of_adahedge(rows: list[tuple[float, ...]]) -> None:
    """Of arXiv 1301.0534 for losses in [0, 1]: 2 sqrt(L (T - L) / T ln K) + 16/3 ln K + 2."""
    _, lost = run(rows, 1.0)
    best = min(sum(column) for column in zip(*rows, strict=True))
    total, arms = len(rows), math.log(3)
    assert lost - best <= 2 * math.sqrt(best * (total - best) / total * arms) + 16 / 3 * arms + 2


@settings(deadline=None)
@given(loss_rows)
def test_a_stored_state_goes_on_as_if_never_stored(rows: list[tuple[float, ...]]) -> None:
    """The state is plain JSON: written, read and continued, the weights are the same."""
    state, _ = run(rows)
    read = hedge.HedgeState.from_plain(json.loads(json.dumps(state.to_plain())))
    told = dict(zip(ARMS, rows[0], strict=True))
    assert hedge.update(read, told) == hedge.update(state, told)


def test_a_new_arm_has_to_show_that_it_is_better_and_an_absent_one_is_not_rewarded() -> None:
    """A version that appears starts with the weight of the worst; one without scores does not gain by it."""
    state = hedge.HedgeState()
    for _ in range(50):
        state = hedge.update(state, {"turbo": 0.2, "off": 0.6})
    state = hedge.update(state, {"turbo": 0.2, "off": 0.6, "adapter@1": 0.2})
    assert hedge.weights(state)["adapter@1"] < 0.1
    before = hedge.weights(state)["off"]
    for _ in range(20):
        state = hedge.update(state, {"turbo": 0.2, "adapter@1": 0.0})
    assert hedge.weights(state)["off"] <= before
    for _ in range(100):
        state = hedge.update(state, {"turbo": 0.2, "adapter@1": 0.0, "off": 0.6})
    assert hedge.weights(state)["adapter@1"] > 0.9
    assert set(hedge.weights(hedge.keep(state, {"turbo", "off"}))) == {"turbo", "off"}


@pytest.mark.parametrize("bad", [{}, {"turbo": math.nan}, {"turbo": math.inf}])
def test_losses_that_are_none_or_not_finite_are_refused(bad: dict[str, float]) -> None:
    """Bad numbers never enter a stored state."""
    with pytest.raises(ValueError, match="finite"):
        hedge.update(hedge.HedgeState(), bad)


def scored(turbo: int, adapter: int) -> ArmScored:
    """A trace of 60 tokens, that the arms verify in so many steps of 4 drafts."""
    arms = ((Arm.TURBO, 0, turbo), (Arm.ADAPTER, 2, adapter))
    scores = [ArmScore(arm, version, steps, 4 * steps, 60 - steps) for arm, version, steps in arms]
    return ArmScored("acme", "r:0", 0.0, "", "", 10, 4, scores)


def test_seconds_per_token_follow_from_steps_and_drafts() -> None:
    """Off needs a step per token; the others fewer steps that cost more."""
    seconds = arm_seconds(scored(30, 20), StepCosts(0.03, 0.0025))
    assert seconds == pytest.approx({"off": 0.03, "turbo": 0.02, "adapter@2": 0.04 / 3})
    assert losses(seconds) == pytest.approx({"off": 1 - 4 / 9, "turbo": 2 / 9, "adapter@2": 0.0})


def test_under_load_drafts_cost_more_than_they_save() -> None:
    """A compute-bound batch makes off the best arm; one request alone does not."""
    curve = {1: 0.030, 8: 0.032, 16: 0.064, 64: 0.256}
    alone, crowded = (StepCosts.at_load(curve, 0.002, rows, 4) for rows in (1, 16))
    for costs, best in ((alone, "adapter@2"), (crowded, "off")):
        assert min(arm_seconds(scored(30, 28), costs).items(), key=lambda item: item[1])[0] == best


def test_replay_compares_every_policy_with_the_best_fixed_arm() -> None:
    """Where the best arm changes halfway, hedge follows: its regret is below that of every fixed arm."""
    rng = random.Random(3)  # noqa: S311  a simulation
    traces = []
    for number in range(400):
        adapter = (0.01 if number < 200 else 0.04) * rng.uniform(0.8, 1.2)
        traces.append(ScoredTrace(50, {"off": 0.03, "turbo": 0.02, "adapter@1": adapter}))
    outcomes = compare(traces, policies(0))
    assert set(outcomes) == {
        *("hedge", "epsilon-greedy", "UCB", "Thompson"),
        *("always off", "always turbo", "always adapter@1"),
    }
    fixed = [outcome.regret for name, outcome in outcomes.items() if name.startswith("always")]
    assert min(fixed) == 0
    assert outcomes["hedge"].regret < 0
    assert compare(traces, policies(0)) == outcomes


def test_replay_refuses_what_cannot_be_compared() -> None:
    """No trace, or traces of other versions."""
    with pytest.raises(ValueError, match="no scored trace"):
        compare([], {})
    with pytest.raises(ValueError, match="different arms"):
        compare([ScoredTrace(1, {"off": 1.0}), ScoredTrace(1, {"turbo": 1.0})], {})
