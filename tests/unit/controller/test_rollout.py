"""Versions on their way into service and out of it, seen through the log and the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from adaptive.contracts import TOPIC_DRAFTER_PUBLISHED, Arm, ArmCounters
from collectors.store import StoreUnavailableError

if TYPE_CHECKING:
    from tests.unit.controller.conftest import Bench


def totals(arm: Arm, version: int, steps: int, per_step: float) -> ArmCounters:
    """Totals of an arm that accepted `per_step` drafts in every verify step."""
    first = int(steps * min(per_step, 1.0))
    second = int(steps * per_step) - first
    return ArmCounters(
        "acme",
        arm,
        version,
        requests=steps // 30,
        verify_steps=steps,
        drafted=4 * steps,
        accepted=first + second,
        accepted_per_position=[first, second],
        emitted=steps + first + second,
        engine_seconds=steps / 20,
    )


def serve(bench: Bench, version: int, adapter: float, turbo: float, rounds: int = 20, **fields: Any) -> None:
    """Act as an engine for some time: 10 adapter steps for each control step."""
    for number in range(1, rounds + 1):
        bench.clock.now += 5
        bench.report(
            [
                totals(Arm.ADAPTER, version, 500 * number, adapter),
                totals(Arm.TURBO, 0, 50 * number, turbo),
            ],
            **fields,
        )


def test_a_published_version_becomes_champion(bench: Bench) -> None:
    """What passed the learner's gate is in the policy that engines obey, with its reason on record."""
    bench.create()
    bench.publish(1)
    policy = bench.policies()["acme"]
    assert policy.champion is not None
    assert (policy.champion.version, policy.champion.sha256, policy.policy_version) == (1, "a" * 64, 2)
    shown = bench.tenant()
    assert shown["champion"] == 1
    assert shown["weights"] == pytest.approx({"off": 0.01, "turbo": 0.05, "adapter@1": 0.94})
    decision = bench.decisions()[0]
    assert (decision["kind"], decision["actor"], decision["version"]) == ("promote", "policy", 1)
    assert "+2.0% to +8.0%" in decision["reason"]
    assert policy.reason == decision["reason"]


def test_a_version_shows_where_it_comes_from(bench: Bench) -> None:
    """Run, trace offsets, seed and the decisions about it; a version that is not there is a 404."""
    bench.create()
    bench.publish(1)
    shown = bench.request("GET", "/v1/tenants/acme/versions/1")
    assert (shown["id"], shown["mlflow_run_id"], shown["seed"]) == ("acme@1", "run", 0)
    assert (shown["trace_first_offset"], shown["trace_last_offset"]) == ({"0": 0}, {"0": 9})
    assert [item["kind"] for item in shown["decisions"]] == ["promote"]
    assert "version 2" in bench.request("GET", "/v1/tenants/acme/versions/2", status=404)["detail"]


def test_a_version_delivered_twice_is_taken_over_once(bench: Bench) -> None:
    """The log delivers at least once; a second delivery decides nothing."""
    bench.create()
    bench.publish(1)
    bench.publish(1)
    assert bench.policies()["acme"].policy_version == 2
    assert len(bench.decisions()) == 2


def test_other_bytes_under_a_known_version_are_held_on_record(bench: Bench) -> None:
    """A number that a learner uses twice changes nothing that serves, and one decision says so."""
    bench.create()
    bench.publish(1)
    for _ in range(2):
        bench.publish(1, sha256="d" * 64)
    policy = bench.policies()["acme"]
    assert policy.champion is not None
    assert (policy.champion.sha256, policy.policy_version) == ("a" * 64, 2)
    assert bench.statuses() == {1: "champion"}
    decision, *earlier = bench.decisions()
    assert (decision["kind"], decision["actor"], decision["version"]) == ("hold", "policy", 1)
    assert "other bytes (sha256 dddddddddddd, known is aaaaaaaaaaaa)" in decision["reason"]
    assert len(earlier) == 2


def test_a_version_of_an_unknown_tenant_is_passed_over(bench: Bench) -> None:
    """It neither stops the loop nor creates a tenant."""
    bench.publish(1, "nobody")
    bench.create()
    bench.publish(1)
    assert bench.tenant()["champion"] == 1
    assert "nobody" not in bench.policies()


def test_an_unreadable_version_does_not_stop_the_loop(bench: Bench) -> None:
    """A poison record is passed over and the next version is taken."""
    bench.create()
    bench.transport.send(TOPIC_DRAFTER_PUBLISHED, "acme", b"\xc1 nonsense")
    bench.publish(1)
    assert bench.tenant()["champion"] == 1


def test_newer_versions_replace_older_ones(bench: Bench) -> None:
    """The champion before is retired; a late older version stays a candidate."""
    bench.create()
    for version in (1, 3, 2):
        bench.publish(version)
    assert bench.statuses() == {1: "retired", 3: "champion", 2: "candidate"}
    assert bench.decisions()[0]["kind"] == "hold"


@pytest.mark.parametrize("hold", [{"pin": 0}, {"freeze": True}])
def test_a_held_tenant_keeps_what_serves(bench: Bench, hold: dict[str, Any]) -> None:
    """While pinned or frozen a version is kept as a candidate, says why, and can be promoted afterwards."""
    bench.create()
    bench.request("PATCH", "/v1/tenants/acme", hold)
    bench.publish(1)
    assert bench.tenant()["champion"] is None
    assert bench.statuses() == {1: "candidate"}
    assert bench.decisions()[0]["kind"] == "hold"
    assert bench.policies()["acme"].policy_version == 1
    bench.request("PATCH", "/v1/tenants/acme", {"pin": None, "freeze": False})
    bench.request("POST", "/v1/tenants/acme/promote", {"version": 1})
    assert bench.tenant()["champion"] == 1


def test_an_operator_promotes_and_rolls_back(bench: Bench) -> None:
    """Promote brings an older version back; rollback returns to what served before, then to turbo."""
    bench.create()
    for version in (1, 2, 3):
        bench.clock.now += 1
        bench.publish(version)
    bench.clock.now += 1
    assert bench.request("POST", "/v1/tenants/acme/promote", {"version": 1})["champion"] == 1
    assert bench.decisions()[0]["actor"] == "admin"
    bench.clock.now += 1
    assert bench.request("POST", "/v1/tenants/acme/rollback")["champion"] == 3
    assert bench.request("POST", "/v1/tenants/acme/rollback")["champion"] == 2
    assert bench.request("POST", "/v1/tenants/acme/rollback")["champion"] is None
    assert bench.statuses() == {1: "rolled_back", 2: "rolled_back", 3: "rolled_back"}
    assert bench.policies()["acme"].champion is None
    problem = bench.request("POST", "/v1/tenants/acme/rollback", status=409)
    assert "nothing to roll back" in problem["detail"]


def test_promoting_what_serves_changes_nothing(bench: Bench) -> None:
    """A repeated promote is answered with the state and decides nothing."""
    bench.create()
    bench.publish(1)
    before = bench.decisions()
    assert bench.request("POST", "/v1/tenants/acme/promote", {"version": 1})["champion"] == 1
    assert bench.decisions() == before


def test_promoting_a_missing_version_is_refused(bench: Bench) -> None:
    """A 404 names the version and where to find the right one."""
    bench.create()
    problem = bench.request("POST", "/v1/tenants/acme/promote", {"version": 9}, 404)
    assert "version 9" in problem["detail"]
    assert "/versions" in problem["detail"]


def test_a_version_is_deleted_only_while_nothing_uses_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file goes and nothing brings it back; in use it is a 409 that says what to do first.

    A store that is away leaves it out of use, and the same request finishes the deletion afterwards.
    """
    bench.create()
    path = "/v1/tenants/acme/versions"
    for version in (1, 2):
        bench.publish(version)
    assert "/rollback" in bench.request("DELETE", f"{path}/2", status=409)["detail"]
    bench.request("PATCH", "/v1/tenants/acme", {"pin": 2})
    assert '"pin": null' in bench.request("DELETE", f"{path}/2", status=409)["detail"]
    bench.request("PATCH", "/v1/tenants/acme", {"pin": None})
    bench.control.policy._canary_share = 0.25
    bench.publish(3)
    assert "/rollouts/3/abort" in bench.request("DELETE", f"{path}/3", status=409)["detail"]
    assert bench.statuses()[2] == "champion"

    removed: list[str] = []

    def away(uri: str) -> bool:
        raise StoreUnavailableError(f"{uri} cannot be reached")

    def remove(uri: str) -> bool:
        removed.append(uri)
        return True

    monkeypatch.setattr(bench.control.store, "remove", away)
    problem = bench.request("DELETE", f"{path}/1", status=503)
    assert "send the same request again" in problem["detail"]
    assert bench.statuses()[1] == "deleted"
    monkeypatch.setattr(bench.control.store, "remove", remove)
    bench.request("DELETE", f"{path}/1", status=204)
    assert removed == ["file:///store/acme/1.safetensors"]
    bench.publish(1)
    assert bench.statuses()[1] == "deleted"
    assert "is gone" in bench.request("POST", "/v1/tenants/acme/promote", {"version": 1}, 409)["detail"]
    assert "is gone" in bench.request("PATCH", "/v1/tenants/acme", {"pin": 1}, 422)["detail"]
    assert bench.request("POST", "/v1/tenants/acme/rollback")["champion"] is None
    entry = bench.request("GET", "/v1/audit")["data"][1]
    assert (entry["action"].split()[0], entry["details"]["removed"]) == ("DELETE", True)


def test_a_pin_serves_and_stays(bench: Bench) -> None:
    """Pinning puts a version in service, and neither the policy nor promote or rollback moves it."""
    bench.create()
    bench.publish(1)
    bench.publish(2)
    assert bench.request("PATCH", "/v1/tenants/acme", {"pin": 1})["champion"] == 1
    bench.publish(3)
    assert bench.tenant()["champion"] == 1
    assert "pinned" in bench.request("POST", "/v1/tenants/acme/promote", {"version": 2}, 409)["detail"]
    assert "pinned" in bench.request("POST", "/v1/tenants/acme/rollback", status=409)["detail"]
    serve(bench, 1, adapter=0.1, turbo=1.5)
    assert bench.tenant()["champion"] == 1
    assert bench.request("PATCH", "/v1/tenants/acme", {"pin": 0})["champion"] is None
    assert bench.policies()["acme"].champion is None


def test_a_slow_champion_is_rolled_back_and_says_why(bench: Bench) -> None:
    """Live acceptance clearly below turbo's control traffic sends the champion back to its predecessor."""
    bench.create()
    bench.publish(1)
    bench.clock.now += 1
    bench.publish(2)
    serve(bench, 2, adapter=0.3, turbo=1.4)
    assert bench.statuses() == {1: "champion", 2: "rolled_back"}
    policy = bench.policies()["acme"]
    assert policy.champion is not None
    assert policy.champion.version == 1
    assert "slower than turbo" in policy.reason
    assert "1.30" in policy.reason
    assert "2.40" in policy.reason
    decision = bench.decisions()[0]
    assert (decision["kind"], decision["actor"], decision["version"]) == ("rollback", "policy", 2)
    assert decision["evidence"]["tau_upper"] < 1


def test_a_rollback_to_turbo_where_nothing_served_before(bench: Bench) -> None:
    """The first champion falls back to turbo, and the lift ends with it."""
    bench.create()
    bench.publish(1)
    serve(bench, 1, adapter=0.3, turbo=1.4)
    assert bench.tenant()["champion"] is None
    assert bench.tenant()["lift"] is None


def test_a_good_champion_stays_and_its_lift_shows(bench: Bench) -> None:
    """A faster champion serves on; the API shows its acceptance length, its lift and every arm's counts."""
    bench.create()
    bench.publish(1)
    serve(bench, 1, adapter=1.5, turbo=1.2)
    shown = bench.tenant()
    assert shown["champion"] == 1
    assert shown["tau"] == pytest.approx(2.5)
    assert shown["acceptance"] == pytest.approx(1.5 / 4)
    assert shown["lift"]["tau"] == pytest.approx(2.5 / 2.2)
    assert shown["lift"]["goodput"] == pytest.approx(2.5 / 2.2)
    assert shown["lift"]["tau_lower"] > 1
    adapter, turbo = shown["arms"]
    assert (adapter["arm"], adapter["version"], adapter["verify_steps"]) == ("adapter", 1, 10_000)
    assert adapter["acceptance_per_position"] == [1.0, 0.5]
    assert adapter["tokens"] == 25_000
    assert (turbo["arm"], turbo["version"], turbo["verify_steps"]) == ("turbo", 0, 1000)


def test_traffic_before_the_promotion_does_not_count(bench: Bench) -> None:
    """Turbo's old traffic, however good, is not compared with a champion that serves other traffic now."""
    bench.create()
    for number in range(1, 20):
        bench.clock.now += 5
        bench.report([totals(Arm.TURBO, 0, 1000 * number, 3.0)])
    bench.clock.now += 5
    bench.publish(1)
    for number in range(1, 20):
        bench.clock.now += 5
        control = totals(Arm.TURBO, 0, 19_000 + 50 * number, 3.0)
        control.accepted -= 50 * number * 2
        control.accepted_per_position = [control.verify_steps, control.accepted - control.verify_steps]
        bench.report([control, totals(Arm.ADAPTER, 1, 500 * number, 1.2)])
    assert bench.tenant()["champion"] == 1
    assert bench.tenant()["lift"]["control_tau"] == pytest.approx(2.0, abs=0.01)


def test_a_refused_version_goes_and_its_predecessor_stays(bench: Bench) -> None:
    """A version that an engine cannot load is marked with the reason and never promoted again."""
    bench.create()
    bench.publish(1)
    bench.clock.now += 1
    bench.publish(2)
    why = "adapter acme@2: tensor q_proj.A holds NaN"
    bench.report([], refused={"acme": why}, refused_policies={"acme": 3}, acknowledged={"acme": 2})
    assert bench.statuses() == {1: "champion", 2: "refused"}
    policy = bench.policies()["acme"]
    assert policy.champion is not None
    assert (policy.champion.version, policy.policy_version) == (1, 4)
    decision = bench.decisions()[0]
    assert (decision["kind"], decision["actor"], decision["version"]) == ("refuse", "engine", 2)
    assert why in decision["reason"]
    shown = bench.tenant()
    assert shown["refusals"][0]["version"] == 2
    assert shown["refusals"][1] == {"version": None, "engine": "engine-1", "reason": why}
    assert why in bench.request("POST", "/v1/tenants/acme/promote", {"version": 2}, 409)["detail"]


def test_a_refusal_of_an_older_policy_is_not_held_against_the_newer(bench: Bench) -> None:
    """An engine repeats its refusal until it has seen the next policy; that costs no other version."""
    bench.create()
    bench.publish(1)
    bench.clock.now += 1
    bench.publish(2)
    for _ in range(3):
        bench.clock.now += 1
        bench.report([], refused={"acme": "NaN"}, refused_policies={"acme": 3}, acknowledged={"acme": 2})
    assert bench.statuses() == {1: "champion", 2: "refused"}
    assert bench.policies()["acme"].policy_version == 4


def test_a_refusal_that_names_no_policy_counts_after_a_while(bench: Bench) -> None:
    """It is taken to be about the policy in force once the engine has had time to see that one."""
    bench.create()
    bench.publish(1)
    bench.clock.now += 1
    bench.report([], refused={"acme": "wrong turbo"}, acknowledged={"acme": 1})
    assert bench.statuses() == {1: "champion"}
    bench.clock.now += 5
    bench.report([], refused={"acme": "wrong turbo"}, acknowledged={"acme": 1})
    assert bench.statuses() == {1: "refused"}
    assert bench.tenant()["champion"] is None


def test_a_refused_pin_is_removed(bench: Bench) -> None:
    """Not even an operator can make an engine serve what it cannot load."""
    bench.create()
    bench.publish(1)
    bench.request("PATCH", "/v1/tenants/acme", {"pin": 1})
    bench.report([], refused={"acme": "truncated file"}, refused_policies={"acme": 2})
    shown = bench.tenant()
    assert (shown["champion"], shown["pin"]) == (None, None)
    assert "its pin was removed" in bench.decisions()[0]["reason"]
    assert "was refused" in bench.request("PATCH", "/v1/tenants/acme", {"pin": 1}, 422)["detail"]


def test_engines_acknowledge_policies(bench: Bench) -> None:
    """The API shows how far each engine is, and which engines have fallen silent."""
    bench.create()
    bench.publish(1)
    bench.report([], engine="a", acknowledged={"acme": 2}, swap_pause_ms=[1.5, 3.0])
    bench.report([], engine="b", acknowledged={"acme": 1})
    shown = bench.tenant()["engines"]
    assert [(item["engine"], item["policy_version"], item["current"]) for item in shown] == [
        ("a", 2, True),
        ("b", 1, False),
    ]
    assert all(item["alive"] for item in shown)
    bench.clock.now += 60
    listed = bench.request("GET", "/v1/engines")["data"]
    assert [(item["id"], item["alive"], item["swaps"], item["swap_pause_ms_max"]) for item in listed] == [
        ("a", False, 2, 3.0),
        ("b", False, 0, None),
    ]
