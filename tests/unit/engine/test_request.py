"""The plan that travels in extra_args."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.contracts import Arm
from adaptive.engine.request import PREFIX, RequestPlan

PLANS = st.builds(
    RequestPlan,
    tenant=st.text(max_size=8),
    arm=st.sampled_from(Arm),
    lookahead=st.none() | st.integers(0, 16),
    learn=st.booleans(),
    share=st.booleans(),
    features=st.booleans(),
    prediction=st.lists(st.integers(0, 1 << 17), max_size=4),
    group=st.text(max_size=4),
    fixed=st.booleans(),
    ngram=st.booleans(),
    generation=st.integers(0, 9),
)


@given(PLANS)
def test_a_plan_survives_the_trip_as_json(plan: RequestPlan) -> None:
    """What the endpoint puts into vllm_xargs is what the worker reads, with JSON on the way."""
    entries = plan.to_extra_args()
    assert all(
        key.startswith(PREFIX) and isinstance(value, (str, int, list)) for key, value in entries.items()
    )
    assert RequestPlan.from_extra_args(json.loads(json.dumps(entries))) == plan


@pytest.mark.parametrize("extra_args", [None, {}, {"other": 1}, {"adaptive_tenant": "acme"}])
def test_a_request_without_a_plan_drafts_with_turbo_uncaptured(extra_args: dict[str, object] | None) -> None:
    """An offline call that knows nothing of tenants is served, never recorded."""
    plan = RequestPlan.from_extra_args(extra_args)
    assert (plan.arm, plan.learn, plan.features) == (Arm.TURBO, False, False)


def test_an_unknown_arm_is_an_error() -> None:
    """Only the endpoint writes plans, so a wrong one is a fault to hear of."""
    with pytest.raises(ValueError, match="nonsense"):
        RequestPlan.from_extra_args({"adaptive_arm": "nonsense", "adaptive_tenant": "acme"})


@pytest.mark.parametrize(
    ("arm", "lookahead", "expected"),
    [
        (Arm.TURBO, None, 4),
        (Arm.ADAPTER, 2, 2),
        (Arm.ADAPTER, 9, 4),
        (Arm.TURBO, 0, 0),
        (Arm.OFF, None, 0),
        (Arm.OFF, 3, 0),
    ],
)
def test_lookahead_is_capped(arm: Arm, lookahead: int | None, expected: int) -> None:
    """The smaller of the engine's cap and the request's; off never drafts."""
    assert RequestPlan(arm=arm, lookahead=lookahead).capped_lookahead(4) == expected
