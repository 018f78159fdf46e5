"""Rollouts from shadow over canary into service, and engines that slow down, through log and API."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from adaptive.contracts import TOPIC_ARM_SCORED, Arm, ArmCounters, ArmScore, ArmScored, encode
from controller import drift, rollout, stages
from controller.models import Rollout
from controller.slowdown import KNOTS, REPORTS, Speed, observe, step_seconds
from controller.trial import SHADOW_SECONDS, Shadow, Step, judge_shadow

if TYPE_CHECKING:
    from tests.unit.controller.conftest import Bench


@pytest.fixture
def staged(bench: Bench) -> Bench:
    """A controller that tries new versions on a quarter of the requests first."""
    bench.control.policy._canary_share = 0.25
    bench.create()
    return bench


def stage(bench: Bench, version: int = 1) -> str:
    """Stage of a version's rollout, as stored."""
    with bench.control.database.read() as session:
        query = select(Rollout.stage).where(Rollout.version == version)
        return str(session.scalars(query).one())


def score(bench: Bench, version: int, challenger: int, serving: int = 30, count: int = 40) -> None:
    """Act as a learner that scores traces of 60 tokens, verified in so many steps."""
    for number in range(count):
        spread = number % 5
        scores = [
            ArmScore(Arm.TURBO, 0, serving + spread, 4 * serving, 60 - serving - spread),
            ArmScore(Arm.ADAPTER, version, challenger + spread, 4 * challenger, 60 - challenger - spread),
        ]
        scored = ArmScored("acme", f"{version}-{number}:0", 1.0, "t", "d", 9, 4, scores)
        bench.transport.send(TOPIC_ARM_SCORED, "acme", encode(scored))
    bench.work()


class Traffic:
    """An engine on which adapters and turbo accept so many drafts per step, with the noise of requests."""

    def __init__(self, bench: Bench, seed: int = 1) -> None:
        self.bench = bench
        self.chance = random.Random(seed)  # noqa: S311  a simulation
        self.sums: dict[tuple[Arm, int], list[int]] = {}

    def serve(self, rounds: int, steps: dict[tuple[Arm, int], tuple[int, float]], **fields: Any) -> None:
        """Some reports; per arm and version the verify steps of each and the drafts accepted per step."""
        for _ in range(rounds):
            self.bench.clock.now += 5
            for arm, (count, per_step) in steps.items():
                accepted = int(count * per_step * self.chance.uniform(0.9, 1.1))
                sums = self.sums.setdefault(arm, [0, 0])
                sums[0] += count
                sums[1] += accepted
            counters = [
                ArmCounters(
                    *("acme", arm, version, count // 30, count, 4 * count, accepted),
                    [min(accepted, count), max(accepted - count, 0)],
                    count + accepted,
                    count / 20,
                )
                for (arm, version), (count, accepted) in self.sums.items()
            ]
            self.bench.report(counters, **fields)


def test_a_good_challenger_goes_from_shadow_over_canary_to_champion(staged: Bench) -> None:
    """Each stage shows in the policy that engines obey, and each decision gives its numbers."""
    staged.publish(1)
    assert stage(staged) == "shadow"
    assert staged.policies()["acme"].challenger is None
    assert staged.tenant()["champion"] is None
    score(staged, 1, challenger=20)
    assert stage(staged) == "canary"
    policy = staged.policies()["acme"]
    assert policy.challenger is not None
    assert (policy.challenger.version, policy.canary_share, policy.champion) == (1, 0.25, None)
    Traffic(staged).serve(40, {(Arm.ADAPTER, 1): (100, 1.8), (Arm.TURBO, 0): (300, 1.2)})
    assert stage(staged) == "champion"
    policy = staged.policies()["acme"]
    assert policy.champion is not None
    assert (policy.champion.version, policy.challenger, policy.canary_share) == (1, None, 0.0)
    kinds = [item["kind"] for item in staged.decisions()]
    assert kinds == ["promote", "rollout", "rollout", "create"]
    assert staged.decisions()[0]["evidence"]["tau_lower"] > 0.9


def test_the_api_shows_a_rollout_with_its_numbers_in_every_stage(staged: Bench) -> None:
    """Stage, share, scored traces and interval, then the canary's lift; lists hold it, also by state."""
    staged.publish(1)
    shown = staged.request("GET", "/v1/tenants/acme/rollouts/1")
    assert (shown["id"], shown["stage"], shown["running"], shown["traces"]) == ("acme@1", "shadow", True, 0)
    assert shown["gain_lower"] is None
    score(staged, 1, challenger=25)
    shown = staged.request("GET", "/v1/tenants/acme/rollouts/1")
    assert (shown["stage"], shown["share"], shown["traces"]) == ("canary", 0.25, 40)
    assert 0 < shown["gain_lower"] < shown["gain_upper"]
    weights = staged.tenant()["arm_weights"]
    assert sum(weights.values()) == pytest.approx(1)
    assert max(weights, key=weights.__getitem__) == "adapter@1"
    Traffic(staged).serve(5, {(Arm.ADAPTER, 1): (300, 1.2), (Arm.TURBO, 0): (900, 1.2)})
    shown = staged.request("GET", "/v1/tenants/acme/rollouts/1")
    assert shown["stage"] == "canary"
    assert shown["evidence"]["tau_lower"] < shown["evidence"]["tau"] < shown["evidence"]["tau_upper"]
    staged.create("other")
    staged.publish(1, "other")
    assert [item["id"] for item in staged.request("GET", "/v1/tenants/acme/rollouts")["data"]] == ["acme@1"]
    pages = [staged.request("GET", f"/v1/rollouts?limit=1{rest}") for rest in ("", "&after=acme@1")]
    assert [(one["last_id"], one["has_more"]) for one in pages] == [("acme@1", True), ("other@1", False)]
    staged.request("POST", "/v1/tenants/other/rollouts/1/abort")
    ended = staged.request("GET", "/v1/rollouts?state=ended")["data"]
    assert "other@1" in [item["id"] for item in ended]
    assert not any(item["running"] for item in ended)
    assert (
        "/rollouts lists them" in staged.request("GET", "/v1/tenants/acme/rollouts/9", status=404)["detail"]
    )


@pytest.mark.parametrize("canary", [False, True])
def test_an_operator_aborts_a_rollout(staged: Bench, canary: bool) -> None:
    """It ends at once, on record with its numbers; only by hand its version may come back; not twice."""
    staged.publish(1)
    if canary:
        score(staged, 1, challenger=25)
        assert staged.policies()["acme"].challenger is not None
    ended = staged.request("POST", "/v1/tenants/acme/rollouts/1/abort")
    assert (ended["stage"], ended["running"]) == ("aborted", False)
    assert staged.policies()["acme"].challenger is None
    assert staged.statuses() == {1: "candidate"}
    decision = staged.decisions()[0]
    assert (decision["kind"], decision["actor"], decision["version"]) == ("abort", "admin", 1)
    assert decision["evidence"]["traces"] == (40 if canary else 0)
    score(staged, 1, challenger=20, count=80)
    assert stage(staged) == "aborted"
    problem = staged.request("POST", "/v1/tenants/acme/rollouts/1/abort", status=409)
    assert "ended already" in problem["detail"]
    assert "/rollback" in problem["detail"]
    staged.publish(1)
    assert staged.tenant()["champion"] is None
    staged.request("POST", "/v1/tenants/acme/promote", {"version": 1})
    assert staged.tenant()["champion"] == 1


def test_a_bad_canary_is_ended_and_never_becomes_champion(staged: Bench) -> None:
    """The engines stop trying it in the same transaction; what served goes on."""
    staged.publish(1)
    score(staged, 1, challenger=28)
    Traffic(staged).serve(40, {(Arm.ADAPTER, 1): (100, 0.4), (Arm.TURBO, 0): (300, 1.4)})
    assert stage(staged) == "aborted"
    assert staged.policies()["acme"].challenger is None
    assert staged.statuses() == {1: "rolled_back"}
    decision = staged.decisions()[0]
    assert (decision["kind"], decision["actor"], decision["version"]) == ("abort", "policy", 1)
    assert decision["evidence"]["tau_upper"] < 1


def test_a_version_that_its_shadow_shows_to_be_worse_serves_no_request(staged: Bench) -> None:
    """Scores below those of turbo end the rollout before any request drafted with it."""
    staged.publish(1)
    score(staged, 1, challenger=45)
    assert stage(staged) == "aborted"
    assert staged.policies()["acme"].policy_version == 1
    assert "in stage shadow" in staged.decisions()[0]["reason"]


def test_without_scores_the_holdout_has_to_do(staged: Bench) -> None:
    """A learner that scores nothing does not hold a rollout up for ever; a clock set back does not either."""
    staged.publish(1)
    staged.clock.now -= 5000
    staged.work()
    assert stage(staged) == "shadow"
    staged.clock.now += SHADOW_SECONDS
    staged.work()
    assert stage(staged) == "canary"
    assert "no learner scored it" in staged.decisions()[0]["reason"]


def test_a_clock_that_jumps_forward_promotes_nothing(staged: Bench) -> None:
    """A canary needs traffic, not time."""
    staged.publish(1)
    score(staged, 1, challenger=20)
    staged.clock.now += 1e7
    staged.work()
    assert stage(staged) == "canary"


@pytest.mark.parametrize("hold", [{"pin": 0}, {"freeze": True}])
def test_a_held_tenants_rollout_waits(staged: Bench, hold: dict[str, Any]) -> None:
    """An operator's hold stops the policy in every stage."""
    staged.publish(1)
    staged.request("PATCH", "/v1/tenants/acme", hold)
    score(staged, 1, challenger=20)
    assert stage(staged) == ("shadow" if "freeze" in hold else stage(staged))
    assert staged.tenant()["champion"] is None


def test_an_operators_promotion_ends_the_rollout(staged: Bench) -> None:
    """Promote makes the version champion at once, and the policy no longer tries it."""
    staged.publish(1)
    score(staged, 1, challenger=20)
    staged.request("POST", "/v1/tenants/acme/promote", {"version": 1})
    assert stage(staged) == "champion"
    assert staged.policies()["acme"].challenger is None


def test_a_newer_version_takes_the_place_of_one_on_trial(staged: Bench) -> None:
    """One rollout per tenant: the older version stays a candidate."""
    staged.publish(1)
    score(staged, 1, challenger=20)
    staged.publish(2)
    assert (stage(staged, 1), stage(staged, 2)) == ("aborted", "shadow")
    assert staged.statuses() == {1: "candidate", 2: "candidate"}
    assert staged.policies()["acme"].challenger is None


def test_a_refused_canary_does_not_cost_the_champion(staged: Bench) -> None:
    """The version on trial is the one that is new to the engine."""
    staged.control.policy._canary_share = 0.0
    staged.publish(1)
    staged.control.policy._canary_share = 0.25
    staged.publish(2)
    staged.clock.now += SHADOW_SECONDS
    staged.work()
    version = staged.policies()["acme"].policy_version
    staged.report([], refused={"acme": "NaN"}, refused_policies={"acme": version})
    assert staged.statuses() == {1: "champion", 2: "refused"}
    assert staged.policies()["acme"].challenger is None


def test_a_rollout_survives_a_controller_that_dies_in_mid_promotion(
    staged: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a promotion is true before all of it is; the next round finishes it from the rows alone."""
    staged.publish(1)
    score(staged, 1, challenger=20)
    before = staged.policies()["acme"]
    with monkeypatch.context() as broken:

        def dies(*_: object, **__: object) -> None:
            raise MemoryError

        broken.setattr(rollout, "enqueue", dies)
        traffic = Traffic(staged)
        with pytest.raises(MemoryError):
            traffic.serve(40, {(Arm.ADAPTER, 1): (100, 1.8), (Arm.TURBO, 0): (300, 1.2)})
    assert stage(staged) == "canary"
    assert staged.tenant()["champion"] is None
    assert staged.policies()["acme"] == before
    staged.control.policy.reset()
    staged.work()
    assert stage(staged) == "champion"
    assert staged.tenant()["champion"] == 1


def test_a_trace_scored_twice_counts_once(staged: Bench) -> None:
    """Weights over arms follow the scores, and a repeated delivery changes nothing."""
    staged.publish(1)
    score(staged, 1, challenger=20, count=15)
    with staged.control.database.read() as session:
        first = stages.arm_weights(session, "acme")
    assert first["adapter@1"] > 0.9
    score(staged, 1, challenger=20, count=15)
    with staged.control.database.read() as session:
        assert stages.arm_weights(session, "acme") == first


def test_a_forced_bad_promotion_is_rolled_back_within_200_requests(bench: Bench) -> None:
    """An operator forces a bad version; the watch takes it back by the requests that engines report."""
    bench.create()
    bench.publish(1)
    traffic, requests = Traffic(bench), 0
    while bench.tenant()["champion"] == 1:
        # 13 requests of 30 steps, one of them control.
        traffic.serve(1, {(Arm.ADAPTER, 1): (360, 0.2), (Arm.TURBO, 0): (30, 1.4)})
        requests += 13
        assert requests <= 200
    assert bench.policies()["acme"].champion is None


def slow(factor: float) -> dict[str, Any]:
    """An engine's step seconds at a factor of the usual."""
    return {"target_seconds": {knot: factor * (0.03 + 0.002 * knot) for knot in KNOTS}}


def test_a_slow_engine_raises_an_alert_and_no_rollback(bench: Bench) -> None:
    """Decision, metric and API field name the engine; the champion stays; recovery clears the alert."""
    bench.create()
    bench.publish(1)
    traffic, steps = Traffic(bench), {(Arm.ADAPTER, 1): (300, 1.5), (Arm.TURBO, 0): (30, 1.2)}
    traffic.serve(20, steps, **slow(1.0))
    assert bench.request("GET", "/v1/engines")["data"][0]["slowdown"]["alert_since"] is None
    traffic.serve(REPORTS, steps, **slow(2.0))
    decision = bench.decisions()[0]
    assert (decision["kind"], decision["evidence"]["engine"]) == ("alert", "engine-1")
    assert "no drafter is to blame" in decision["reason"]
    shown = bench.request("GET", "/v1/engines")["data"][0]["slowdown"]
    assert shown["ratio"] == pytest.approx(2.0)
    assert shown["alert_since"] == bench.clock.now
    assert "adaptive_control_engines_slow 1.0" in bench.client.get("/metrics").text
    traffic.serve(20, steps, **slow(2.0))
    assert bench.statuses() == {1: "champion"}
    traffic.serve(REPORTS, steps, **slow(1.0))
    assert "as fast as usual again" in bench.decisions()[0]["reason"]
    assert [item["kind"] for item in bench.decisions()].count("alert") == 2
    assert "adaptive_control_engines_slow 0.0" in bench.client.get("/metrics").text


def test_one_slow_report_is_no_alert_and_the_baseline_does_not_follow_a_slow_engine() -> None:
    """Only a row of slow reports counts, and an engine that stays slow stays on alert."""
    speed: Speed | None = None
    for seconds in [1.0] * 10 + [3.0, 1.0] * 10:
        speed = observe(speed, seconds)
        assert not speed.alert
    for _ in range(1000):
        speed = observe(speed, 2.0)
    assert speed is not None
    assert speed.alert
    assert speed.baseline == pytest.approx(1.0, rel=0.01)
    assert step_seconds({1: 0.1}) is None


def test_an_equal_version_is_hardly_ever_ended_in_shadow() -> None:
    """Looking after every one of 300 traces at a version as good as what serves: fewer than 5 in 100 end."""
    ended = 0
    for seed in range(100):
        chance, shadow = random.Random(seed), Shadow()  # noqa: S311  a simulation
        for _ in range(300):
            shadow = shadow.add(2.0, 2.0 * chance.lognormvariate(0.0, 0.2))
            if judge_shadow(shadow, 0.0) is Step.ABORT:
                ended += 1
                break
    assert ended <= 5


def test_a_shift_of_traffic_is_put_on_record_once(staged: Bench) -> None:
    """ADWIN sees the fall of acceptance and names arm and means; noise alone is no drift."""
    score(staged, 9, challenger=20, serving=30, count=100)
    assert [item["kind"] for item in staged.decisions()] == ["create"]
    score(staged, 10, challenger=20, serving=50, count=60)
    decisions = [item for item in staged.decisions() if item["kind"] == "drift"]
    assert [item["evidence"]["arm"] for item in decisions] == ["turbo"]
    assert decisions[0]["evidence"]["before"] > decisions[0]["evidence"]["after"]


def test_drift_is_found_anew_from_the_stored_window() -> None:
    """The same values in the same order find the same drift, whichever process goes on with them."""
    chance = random.Random(5)  # noqa: S311  a simulation
    window: list[float] = []
    found: list[tuple[int, drift.Drift]] = []
    for number in range(200):
        window, drifted = drift.observe(window, (3.0 if number < 100 else 1.8) + chance.uniform(-0.3, 0.3))
        found += [(number, drifted)] if drifted is not None else []
    assert 100 < found[0][0] < 140
    assert found[0][1].before == pytest.approx(3.0, abs=0.2)
    assert len(window) < 120
