"""Choosing is monotone in survival, cost and rate, and learns from copies that were not taken."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.engine import calibration
from adaptive.engine.calibration import Calibration, Priors
from adaptive.engine.choice import Costs, DraftChoice, best_length, joint
from adaptive.engine.ngram import NgramDrafter, Source
from adaptive.engine.suffix import warm_up
from adaptive.engine.survival import Draft, Judge

PRIORS = Priors.load(Path(calibration.__file__).with_name("priors.json"))
CHEAP = Costs([0.0001 * k for k in range(9)], 0.001, 10.0)
survivals = st.lists(st.floats(0.0, 1.0), max_size=8)
steps = st.lists(st.floats(0.0, 0.05), min_size=8, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    warm_up()


@pytest.fixture
def choice() -> DraftChoice:
    """A fresh choice."""
    return DraftChoice(NgramDrafter(1 << 10, 1 << 20), Calibration(PRIORS))


def seconds(each: list[float]) -> list[float]:
    """Cumulated cost, 0 first."""
    total = [0.0]
    for step in each:
        total.append(total[-1] + step)
    return total


@given(chain=survivals, each=steps, rate=st.floats(0.0, 500.0))
def test_best_length_is_the_best(chain: list[float], each: list[float], rate: float) -> None:
    """No other cut has a higher value, and drafting nothing is always possible."""
    cost = seconds(each)
    length, value = best_length(chain, cost, rate)
    values = [sum(joint(chain[:k])) - rate * cost[k] for k in range(len(chain) + 1)]
    assert value == pytest.approx(max(values), abs=1e-9)
    assert values[length] == pytest.approx(value, abs=1e-9)


@given(chain=survivals, each=steps, rate=st.floats(0.0, 500.0), data=st.data())
def test_value_is_monotone(chain: list[float], each: list[float], rate: float, data: st.DataObject) -> None:
    """A likelier chain, cheaper steps or idler time are never worth less; more rate never drafts more."""
    cost = seconds(each)
    length, value = best_length(chain, cost, rate)
    better = [data.draw(st.floats(survival, 1.0)) for survival in chain]
    assert best_length(better, cost, rate)[1] >= value - 1e-9
    assert best_length(chain, [second / 2 for second in cost], rate)[1] >= value - 1e-9
    shorter, less = best_length(chain, cost, rate * 2)
    assert less <= value + 1e-9
    assert shorter <= length


@given(chain=survivals)
def test_joint_survival_never_rises(chain: list[float]) -> None:
    """A later token survives only with all before it."""
    alive = joint(chain)
    assert all(later <= earlier for earlier, later in pairwise(alive))


def test_a_long_agreed_copy_is_taken_and_a_doubted_one_is_not(choice: DraftChoice) -> None:
    """A copy that the unsure model agrees with wins; one that a sure model contradicts loses."""
    text = list(range(100, 140))
    choice.begin("r", "a", [*text, 1, 2], adapter=False, temperature=0.0)
    choice.verified("r", text[:20])
    agreed = choice.plan("r", Draft(120, 0.0), CHEAP, most_drafted=4, most_copied=8)
    assert agreed.candidate is not None
    assert agreed.candidate.source is Source.REQUEST
    assert agreed.candidate.tokens[: agreed.length] == tuple(text[20 : 20 + agreed.length])
    assert agreed.length >= 4
    doubted = choice.plan("r", Draft(7, 12.0), CHEAP, most_drafted=4, most_copied=8)
    assert doubted.candidate is None or doubted.candidate.tokens[0] == 7


def test_caps_and_prices_are_obeyed(choice: DraftChoice) -> None:
    """Nothing is drafted past a cap, and nothing at all when time is worth more than any token."""
    text = list(range(100, 140))
    choice.begin("r", "a", text, adapter=False, temperature=0.0)
    choice.verified("r", text[:20])
    capped = choice.plan("r", Draft(120, 3.0), CHEAP, most_drafted=2, most_copied=3)
    assert capped.length <= 3
    none = choice.plan("r", Draft(120, 3.0), CHEAP, most_drafted=2, most_copied=0)
    assert none.candidate is None
    assert none.length <= 2
    dear = Costs([10.0 * k for k in range(9)], 10.0, 100.0)
    plan = choice.plan("r", Draft(120, 3.0), dear, most_drafted=4, most_copied=8)
    assert (plan.candidate, plan.length) == (None, 0)
    assert not choice.pays("r", dear, most_drafted=4)
    assert choice.length("r", dear) == 0


def test_copies_that_were_not_taken_are_learned_from(choice: DraftChoice) -> None:
    """A copy is compared with the text as it comes over several steps, whoever drafted."""
    text = list(range(100, 140))
    choice.begin("r", "a", text, adapter=False, temperature=0.0)
    choice.verified("r", text[:20])
    choice.plan("r", Draft(7, 12.0), CHEAP, most_drafted=1, most_copied=4)
    choice.verified("r", [120])
    fits = choice.calibration._fits["a"]
    assert fits[Judge.TURBO].observations == 1  # the model's first draft was wrong: known at once
    assert fits[Judge.COPY_FIRST].observations == 0
    choice.verified("r", [121, 5])
    assert fits[Judge.COPY_FIRST].observations == 1
    assert fits[Judge.COPY_LATER].observations == 2  # 121 came as copied, 122 did not; 123 tells nothing


def test_a_request_that_ends_early_teaches_what_is_known(choice: DraftChoice) -> None:
    """Tokens that no text followed are neither accepted nor rejected."""
    text = list(range(100, 140))
    choice.begin("r", "a", text, adapter=False, temperature=0.0)
    choice.verified("r", text[:20])
    choice.plan("r", Draft(120, 1.0), CHEAP, most_drafted=1, most_copied=8)
    choice.verified("r", [120, 121])
    fits = choice.calibration._fits["a"]
    before = (fits[Judge.COPY_FIRST].observations, fits[Judge.COPY_LATER].observations)
    choice.end("r")
    after = (fits[Judge.COPY_FIRST].observations, fits[Judge.COPY_LATER].observations)
    assert before == (0, 0)
    assert after == (1, 1)


def test_an_erased_tenants_requests_leave_nothing(choice: DraftChoice) -> None:
    """After forget, a request still in flight goes on but is neither learned from nor remembered."""
    text = list(range(100, 140))
    choice.begin("r", "a", text, adapter=False, temperature=0.0)
    choice.verified("r", text[:20])
    choice.plan("r", Draft(120, 1.0), CHEAP, most_drafted=4, most_copied=8)
    choice.forget("a")
    choice.verified("r", [120, 121])
    choice.plan("r", Draft(122, 1.0), CHEAP, most_drafted=4, most_copied=8)
    choice.verified("r", [122, 5])
    choice.end("r")
    assert choice.calibration.errors().get("a", {}) == {}
    choice.begin("s", "a", text[:3], adapter=False, temperature=0.0)
    plan = choice.plan("s", Draft(1, 1.0), CHEAP, most_drafted=4, most_copied=8)
    assert plan.candidate is None
