"""What traces say of a tenant's traffic: rate, tau, and drift that its control group does not share."""

from __future__ import annotations

import random

import msgspec
import pytest

from adaptive.contracts import Arm, SamplingSummary, TraceRecord, VerifyStep
from learners.records import Observation
from learners.traffic import Traffic, observe

STEPS, DRAFTS = 20, 4


def serve(
    traffic: Traffic, requests: int, adapter: float, control: float, *, version: int = 1, seed: int = 0
) -> None:
    """Requests a second apart, every tenth by turbo, with these chances that a draft is accepted."""
    draw = random.Random(seed)  # noqa: S311  # reproducible on purpose
    began = len(traffic._rows)
    for number in range(began, began + requests):
        is_control = number % 10 == 0 or version == 0
        chance = control if is_control else adapter
        accepted = sum(draw.random() < chance for _ in range(STEPS * DRAFTS))
        arm, drafter = (Arm.TURBO, 0) if is_control else (Arm.ADAPTER, version)
        traffic.add(Observation(number, "acme", float(number), arm, drafter, STEPS, STEPS * DRAFTS, accepted))


def test_rate_and_tau_are_those_of_the_newest_traces() -> None:
    """Twenty steps a second that accept half of four drafts each are 60 tokens/s at tau 3."""
    traffic = Traffic()
    for number in range(101):
        traffic.add(Observation(number, "acme", float(number), Arm.TURBO, 0, 20, 80, 40))
    assert traffic.tau == 3
    assert traffic.tokens_per_second == pytest.approx(101 * 60 / 100)


def test_tau_is_that_of_the_adapter_in_service() -> None:
    """Neither the control group nor the version before counts."""
    traffic = Traffic()
    for version, accepted in ((1, 10), (0, 0), (2, 40)):
        arm = Arm.ADAPTER if version else Arm.TURBO
        traffic.add(Observation(version, "acme", 0.0, arm, version, 20, 80, accepted))
    assert traffic.tau == 3


def test_a_tenant_without_traces_is_idle() -> None:
    """Nothing is made up for it."""
    assert Traffic().tokens_per_second == 0


def test_steady_traffic_does_not_drift() -> None:
    """Over 20 tenants of 400 requests nothing is called a drift, a new version's rise least of all."""
    for seed in range(20):
        traffic = Traffic()
        serve(traffic, 200, adapter=0.5, control=0.4, seed=seed)
        serve(traffic, 200, adapter=0.7, control=0.4, version=2, seed=seed)
        assert traffic.drifts == 0


def test_a_fall_against_the_control_group_is_a_drift() -> None:
    """The adapter's acceptance falls by a third and turbo's stays: noticed within 60 requests."""
    traffic = Traffic()
    serve(traffic, 200, adapter=0.6, control=0.4)
    serve(traffic, 60, adapter=0.4, control=0.4, seed=1)
    assert traffic.drifts == 1
    assert traffic.drifted_at > 200


def test_a_fall_that_the_control_group_shares_is_no_drift() -> None:
    """An engine or target that got worse takes both down slowly: no reason to train."""
    traffic = Traffic()
    for fall in range(20):
        serve(traffic, 20, adapter=0.6 - fall / 100, control=0.45 - fall / 100, seed=fall)
    assert traffic.drifts == 0


def test_other_traffic_of_a_turbo_tenant_is_noticed() -> None:
    """Without an adapter there is no other group; turbo's own fall counts."""
    traffic = Traffic()
    serve(traffic, 100, adapter=0.0, control=0.6, version=0)
    serve(traffic, 60, adapter=0.0, control=0.3, version=0, seed=1)
    assert traffic.drifts == 1


def test_equal_observations_give_equal_state() -> None:
    """A learner that starts again and reads the ledger knows what the one before knew."""
    states = []
    for _ in range(2):
        traffic = Traffic()
        serve(traffic, 200, adapter=0.6, control=0.4)
        serve(traffic, 100, adapter=0.3, control=0.4, seed=1)
        states.append((traffic.drifts, traffic.drifted_at, traffic.tau, traffic.tokens_per_second))
    assert states[0] == states[1]
    assert states[0][0] > 0


def test_a_trace_is_summed_up_by_drafter() -> None:
    """Steps without drafts and copied drafts count for nobody."""
    steps = [
        VerifyStep(Arm.TURBO, 0, 0, [1, 2], 1, [0.0] * 2),
        VerifyStep(Arm.ADAPTER, 3, 2, [1, 2, 3], 3, [0.0] * 3),
        VerifyStep(Arm.ADAPTER, 3, 6, [1], 0, [0.0]),
        VerifyStep(Arm.NGRAM, 0, 7, [1, 2], 2, [0.0] * 2),
        VerifyStep(Arm.OFF, 0, 10, [], 0, []),
    ]
    record = TraceRecord(
        "r:0", "acme", "r", 0, 5.0, "t", "u", "", [1], 1, 0, [1] * 11, steps, SamplingSummary(), finished=True
    )
    assert [msgspec.structs.astuple(one)[3:] for one in observe(record)] == [
        (Arm.TURBO, 0, 1, 2, 1),
        (Arm.ADAPTER, 3, 2, 4, 3),
    ]
