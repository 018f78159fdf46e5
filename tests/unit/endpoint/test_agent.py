"""The agent obeys the log and reports what the engine does."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import pytest

from adaptive import contracts
from adaptive.contracts import AdapterReference, Arm
from adaptive.endpoint import placement
from adaptive.engine.slots import owner
from tests.unit.endpoint.records import TARGET, TURBO, account, policy
from tests.unit.endpoint.service import ENGINE, Stack, next_report
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_policy_is_put_in_force_and_acknowledged(stack: Stack) -> None:
    """The adapter is fetched, staged, committed with its weight; requests are admitted with its version."""
    stack.tell(account())
    stack.tell(policy(champion=stack.adapter(version=3), policy_version=5, weight=0.75))
    stack.start()
    eventually(lambda: stack.acknowledged() == 5)
    assert stack.engine.slots["acme"]["version"] == 3
    assert stack.engine.slots["acme"]["weight"] == 0.75
    assert stack.directory.admit("acme", None, None).version == 3
    assert stack.refusal() is None
    staged = next(call for call in stack.engine.calls if call[0] == "stage_adapter")
    assert staged[3].endswith(".safetensors")


def test_a_new_version_replaces_the_old_one(stack: Stack) -> None:
    """Policies are followed as they come."""
    stack.start()
    for version in (1, 2):
        stack.tell(policy(champion=stack.adapter(version=version), policy_version=version))
        eventually(functools.partial(stack.acknowledges, version))
        assert stack.engine.versions() == {"acme": version}
        assert stack.directory.admit("acme", None, None).version == version


def test_a_new_weight_alone_moves_no_tensors(stack: Stack) -> None:
    """The same champion is not staged again."""
    champion = stack.adapter()
    stack.tell(policy(champion=champion))
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    stack.engine.calls.clear()
    stack.tell(policy(champion=champion, policy_version=2, weight=0.25))
    eventually(lambda: stack.acknowledged() == 2)
    assert stack.engine.calls == [("set_policy", "acme", 0.25)]


def test_an_older_policy_is_ignored(stack: Stack) -> None:
    """A controller that was restored from a backup does not turn an engine back."""
    stack.tell(policy(champion=stack.adapter(version=2), policy_version=9))
    stack.start()
    eventually(lambda: stack.acknowledged() == 9)
    stack.tell(policy(champion=stack.adapter(version=1), policy_version=8))
    stack.tell(account())
    eventually(lambda: stack.knows("acme-key"))
    next_report(stack)
    assert stack.acknowledged() == 9
    assert stack.engine.versions() == {"acme": 2}


@pytest.mark.parametrize("tombstone", [False, True])
def test_a_policy_without_champion_retires_the_adapter(stack: Stack, tombstone: bool) -> None:
    """A rollback to turbo, and an erased tenant, which is acknowledged no more."""
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    if tombstone:
        stack.log.send(contracts.TOPIC_POLICY_DECIDED, "acme", None)
    else:
        stack.tell(policy(policy_version=2))
    eventually(lambda: stack.acknowledged() == (None if tombstone else 2))
    assert stack.engine.versions() == {}
    assert stack.directory.admit("acme", None, None).arm is Arm.TURBO
    assert ("acme" in stack.saved()["policies"]) is not tombstone


def missing(stack: Stack) -> AdapterReference:
    """Name an object that is not in the store."""
    return stack.adapter(version=2, uri=stack.store.url + "/acme/adapters/gone.safetensors")


def corrupt(stack: Stack) -> AdapterReference:
    """Name an object whose bytes changed."""
    return stack.adapter(version=2, sha256="9" * 64)


def outside(stack: Stack) -> AdapterReference:
    """Name a file that is not in the store."""
    return stack.adapter(version=2, uri="file:///etc/hostname")


def other_target(stack: Stack) -> AdapterReference:
    """Name an adapter of another target."""
    return stack.adapter(version=2, target_sha256="9" * 64)


def other_turbo(stack: Stack) -> AdapterReference:
    """Name an adapter of another turbo."""
    return stack.adapter(version=2, turbo_sha256="9" * 64)


def nan(stack: Stack) -> AdapterReference:
    """Name an adapter that the worker refuses."""
    stack.engine.refuse["acme", 2] = "tensor q_proj.A holds non-finite values"
    return stack.adapter(version=2)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (missing, "gone.safetensors"),
        (corrupt, "adapter acme@2"),
        (outside, "file:///etc/hostname"),
        (other_target, "was trained for another target (999999999999…, this engine has 111111111111…)"),
        (other_turbo, "was trained for another turbo (999999999999…, this engine has 222222222222…)"),
        (nan, "tensor q_proj.A holds non-finite values"),
    ],
)
def test_an_adapter_that_cannot_serve_is_refused_and_the_old_one_stays(
    stack: Stack, make: Callable[[Stack], AdapterReference], named: str
) -> None:
    """Telemetry says which policy and why; the tenant's champion serves on, and the next policy is taken."""
    stack.tell(account())
    stack.tell(policy(champion=stack.adapter(version=1)))
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    stack.tell(policy(champion=make(stack), policy_version=2))
    eventually(stack.refusal)
    refused = stack.refusal()
    assert refused is not None
    assert refused[0] == 2
    assert named in refused[1]
    assert stack.acknowledged() == 1
    assert stack.engine.versions() == {"acme": 1}
    assert stack.knows("acme-key")
    assert stack.directory.admit("acme", None, None).version == 1
    stack.tell(policy(champion=stack.adapter(version=3), policy_version=3))
    eventually(lambda: stack.acknowledged() == 3)
    assert stack.refusal() is None
    assert stack.engine.versions() == {"acme": 3}


def test_one_tenants_bad_adapter_does_not_hold_up_the_others(stack: Stack) -> None:
    """Policies are applied tenant by tenant."""
    stack.tell(policy("acme", champion=stack.adapter("acme", target_sha256="9" * 64)))
    stack.tell(policy("other", champion=stack.adapter("other")))
    stack.start()
    eventually(lambda: stack.acknowledged("other") == 1)
    assert stack.refusal("acme") is not None


def test_accounts_follow_the_log(stack: Stack) -> None:
    """A new key works, a revoked one is refused, an erased tenant is unknown: each within a round."""
    stack.start()
    assert not stack.knows("first")
    stack.tell(account("acme", "first"))
    eventually(lambda: stack.knows("first"))
    stack.tell(account("acme", "second", revision=2))
    eventually(lambda: not stack.knows("first"))
    assert stack.knows("second")
    stack.log.send(contracts.TOPIC_TENANT_CHANGED, "acme", None)
    eventually(lambda: not stack.knows("second"))
    eventually(lambda: "acme" not in stack.saved()["accounts"])


def test_telemetry_says_what_the_engine_does(stack: Stack) -> None:
    """Fingerprints, counters, slots, pauses and the publisher's numbers, again and again."""
    stack.tell(policy(champion=stack.adapter(version=3), weight=0.5))
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    report = next_report(stack)
    assert (report.engine_id, report.target_sha256, report.turbo_sha256) == (ENGINE, TARGET, TURBO)
    assert report.started_at <= report.reported_at <= time.time()
    (counters,) = report.counters
    assert (counters.tenant, counters.arm, counters.requests, counters.verify_steps) == (
        "acme",
        Arm.TURBO,
        2,
        5,
    )
    (slot,) = report.slots
    assert (slot.tenant, slot.version, slot.weight) == ("acme", 3, 0.5)
    assert report.swap_pause_ms == [0.5]
    assert (report.traces_published, report.traces_dropped, report.queue_depth) == (7, 1, 2)
    later = next_report(stack)
    assert later.reported_at > report.reported_at
    assert later.started_at == report.started_at


@pytest.mark.parametrize("old_version_in_flight", [False, True])
def test_an_adapter_that_the_engine_lost_is_noted(stack: Stack, old_version_in_flight: bool) -> None:
    """Requests are admitted as what they are: turbo's. The next one brings the adapter back.

    An older version that still drafts for requests in flight does not count as the tenant's adapter.
    """
    stack.settings = stack.settings.model_copy(update={"slots": 2})
    stack.tell(policy(champion=stack.adapter(version=2)))
    stack.start()
    eventually(lambda: stack.admitted() == 2)
    taken = {"version": 1, "requests": 1} if old_version_in_flight else {"tenant": "other"}
    stack.engine.slots["acme"] = stack.engine.slots["acme"] | taken
    eventually(lambda: stack.directory.admit("acme", None, None).arm is Arm.TURBO)
    eventually(lambda: stack.engine.versions() == {"acme": 2})
    eventually(lambda: stack.admitted() == 2)
    assert stack.acknowledged() == 1


def test_a_policy_alone_takes_no_slot_from_another_tenant(stack: Stack) -> None:
    """With all slots taken it is obeyed and acknowledged; the adapter comes in with the first request.

    Turbo serves that request, the header says so, and the tenant that used its adapter least recently gives
    up its slot.
    """
    engine = stack.use_slots(3)
    stack.start()
    for tenant in ("a", "b", "c"):
        stack.tell(policy(tenant, champion=stack.adapter(tenant, version=3)))
        eventually(functools.partial(stack.acknowledges, 1, tenant))
    assert [slot.tenant for slot in engine.table.occupied()] == ["a", "b"]
    for tenant in ("b", "a"):
        engine.table.release(engine.table.acquire(tenant)[0])
    admission = stack.directory.admit("c", None, None)
    assert (admission.arm, admission.version, admission.wanted) == (Arm.TURBO, 0, Arm.ADAPTER)
    eventually(lambda: stack.directory.version_in_force("c") == 3)
    assert stack.directory.admit("c", None, None).arm is Arm.ADAPTER
    assert sorted(slot.tenant or "" for slot in engine.table.occupied()) == ["a", "c"]
    assert [stack.directory.version_in_force(tenant) for tenant in ("a", "b")] == [3, 0]
    report = next_report(stack)
    assert report.acknowledged == {"a": 1, "b": 1, "c": 1}
    assert {usage.tenant: (usage.loads, usage.evictions) for usage in report.slot_usage} == {
        "a": (1, 0),
        "b": (1, 1),
        "c": (1, 0),
    }


def test_many_more_tenants_than_slots_are_served_in_turn(stack: Stack) -> None:
    """Each tenant's request brings its adapter in; a slot in use is never taken."""
    engine = stack.use_slots(3)
    stack.start()
    tenants = [f"t{number}" for number in range(8)]
    for tenant in tenants:
        stack.tell(policy(tenant, champion=stack.adapter(tenant)))
    eventually(lambda: (report := stack.report()) and set(report.acknowledged) == set(tenants))
    held = engine.table.acquire("t0")
    for tenant in [*tenants[1:], *tenants[1:]]:
        stack.directory.admit(tenant, None, None)
        eventually(lambda tenant=tenant: stack.directory.version_in_force(tenant) == 1)  # type: ignore[misc]  # a default
        assert engine.table.current_version("t0") == 1
    engine.table.release(held[0])
    assert len({path.name for path in stack.adapter_files()}) == len(tenants)


def test_a_wish_that_finds_no_slot_waits_for_the_next_request(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While every slot drafts, turbo serves: nothing is read in vain, nothing is evicted."""
    monkeypatch.setattr(placement, "RETRY_SECONDS", 0.05)
    engine = stack.use_slots(2)
    stack.start()
    for tenant in ("a", "b"):
        stack.tell(policy(tenant, champion=stack.adapter(tenant)))
        eventually(functools.partial(stack.acknowledges, 1, tenant))
    row, _ = engine.table.acquire("a")
    engine.calls.clear()
    stack.directory.admit("b", None, None)
    eventually(lambda: ("placeable", "b") in engine.calls)
    next_report(stack)
    assert not any(call[0] == "stage_adapter" for call in engine.calls)
    engine.table.release(row)
    time.sleep(0.06)
    assert engine.table.current_version("b") == 0
    stack.directory.admit("b", None, None)
    eventually(lambda: engine.table.current_version("b") == 1)


def test_a_new_version_that_finds_no_slot_retires_the_old_one(stack: Stack) -> None:
    """A rollback must not leave the withdrawn version in service: turbo serves until the next can come in."""
    engine = stack.use_slots(2)
    stack.tell(policy(champion=stack.adapter(version=2), policy_version=1))
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    row, _ = engine.table.acquire("acme")
    stack.tell(policy(champion=stack.adapter(version=1), policy_version=2))
    eventually(lambda: stack.acknowledged() == 2)
    assert stack.directory.version_in_force("acme") == 0
    assert engine.table.current_version("acme") == 0
    engine.table.release(row)
    stack.directory.admit("acme", None, None)
    eventually(lambda: engine.table.current_version("acme") == 1)


def test_files_that_no_policy_names_are_deleted(stack: Stack) -> None:
    """Old versions do not pile up in home; what a policy names, and what serves, stays."""
    stack.start()
    for version in (1, 2):
        stack.tell(policy(champion=stack.adapter(version=version), policy_version=version))
        eventually(functools.partial(stack.acknowledges, version))
    eventually(lambda: len(stack.adapter_files()) == 1)
    stack.tell(policy(champion=stack.adapter(version=3, target_sha256="9" * 64), policy_version=3))
    eventually(stack.refusal)
    assert len(stack.adapter_files()) == 1
    stack.tell(policy(policy_version=4))
    eventually(lambda: stack.acknowledged() == 4)
    eventually(lambda: stack.adapter_files() == [])


def test_a_challenger_is_tried_beside_the_champion(stack: Stack) -> None:
    """Its share of requests drafts with it and no more; the end of the trial leaves the champion."""
    champion, challenger = stack.adapter(version=1), stack.adapter(version=2)
    stack.start()
    stack.tell(policy(policy_version=1, champion=champion, challenger=challenger, canary_share=0.25))
    eventually(lambda: stack.acknowledged() == 1)
    admitted = [stack.directory.admit("acme", None, None) for _ in range(2000)]
    assert {(item.version, item.canary) for item in admitted} == {(1, False), (2, True)}
    assert 400 < sum(item.canary for item in admitted) < 600
    assert len(stack.adapter_files()) == 2
    stack.tell(policy(policy_version=2, champion=champion))
    eventually(lambda: stack.acknowledged() == 2)
    assert {stack.admitted() for _ in range(100)} == {1}
    assert stack.engine.versions() == {"acme": 1}


def test_a_lost_challenger_comes_back_and_its_requests_go_to_the_champion(stack: Stack) -> None:
    """Another tenant took its slot: nothing is admitted to it until it is resident again."""
    stack.start()
    stack.tell(
        policy(champion=stack.adapter(version=1), challenger=stack.adapter(version=2), canary_share=1.0)
    )
    eventually(lambda: stack.acknowledged() == 1)
    stack.engine.full = True
    stack.engine.slots.pop(owner("acme", canary=True))
    eventually(lambda: {stack.admitted() for _ in range(50)} <= {0, 1})
    stack.engine.full = False
    agent = stack.agent
    assert agent is not None
    agent._waiting.clear()  # not the whole pause between two attempts
    eventually(lambda: 2 in {stack.admitted() for _ in range(50)})


def test_a_refused_challenger_leaves_the_champion_in_service(stack: Stack) -> None:
    """The reason names the challenger and the policy."""
    stack.engine.refuse["acme", 2] = "tensor q_proj.A holds non-finite values"
    stack.start()
    stack.tell(
        policy(champion=stack.adapter(version=1), challenger=stack.adapter(version=2), canary_share=0.5)
    )
    eventually(stack.refusal)
    assert stack.refusal() == (1, "tensor q_proj.A holds non-finite values")
    assert stack.engine.versions() == {"acme": 1}
    assert {stack.admitted() for _ in range(50)} <= {0, 1}
