"""The agent on a real log and a real store, with a fake engine."""

from __future__ import annotations

import functools
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from adaptive import contracts
from adaptive.contracts import AdapterReference, Arm, EngineTelemetry, PolicyDecided, TenantChanged
from adaptive.endpoint import agent as agent_module
from adaptive.endpoint.agent import Agent
from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.saved import StateFile
from adaptive.endpoint.tenants import TenantDirectory
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.store import StoreUnavailableError, TensorStore
from collectors.transport import Transport, TransportUnavailableError
from tests.unit.endpoint.records import TARGET, TURBO, account, policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ENGINE = "127.0.0.1:8000"


class Engine:
    """Keeps what the worker would hold; fails where a test asks it to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.staged: dict[tuple[str, int], bytes] = {}
        self.refuse: dict[tuple[str, int], str] = {}
        self.full = False
        self.broken = False
        self.slots: dict[str, dict[str, Any]] = {}
        self.pauses: list[float] = []

    def call(self, method: str, *args: Any) -> Any:
        """Run an RPC."""
        if self.broken:
            raise TimeoutError("the engine does not answer")
        if method != "adapter_info":
            self.calls.append((method, *args))
        return getattr(self, method)(*args)

    def stage_adapter(self, tenant: str, version: int, path: str) -> None:
        """Read the file."""
        with open(path, "rb") as file:  # noqa: PTH123  as text comes from the agent
            self.staged[tenant, version] = file.read()

    def staged_adapter(self, tenant: str, version: int) -> tuple[str, str]:
        """What became of it."""
        if (tenant, version) in self.refuse:
            return "refused", self.refuse[tenant, version]
        return ("ready", "") if (tenant, version) in self.staged else ("absent", "")

    def commit_adapter(self, tenant: str, version: int, weight: float) -> dict[str, Any]:
        """Put it in service."""
        if self.full:
            return {"error": f"no free adapter slot for tenant {tenant!r}", "retry": True}
        del self.staged[tenant, version]
        self.slots[tenant] = {
            "slot": 1,
            "tenant": tenant,
            "version": version,
            "weight": weight,
            "requests": 0,
        }
        self.pauses.append(0.5)
        return {"slot": 1, "pause_ms": 0.5}

    def retire_adapter(self, tenant: str) -> None:
        """Back to turbo."""
        self.slots.pop(tenant, None)

    def set_policy(self, tenant: str, weight: float) -> None:
        """A new weight."""
        self.slots[tenant]["weight"] = weight

    def adapter_info(self) -> dict[str, Any]:
        """As the worker reports."""
        counter = {"tenant": "acme", "arm": "turbo", "version": 0, "requests": 2, "verify_steps": 5}
        return {
            "counters": [counter],
            "slots": list(self.slots.values()),
            "requests": 0,
            "pauses_ms": self.pauses,
            "capture": {"published": 7, "dropped": 1, "queue_depth": 2},
        }

    def versions(self) -> dict[str, int]:
        """Tenant -> version in service."""
        return {tenant: slot["version"] for tenant, slot in self.slots.items()}


class Stack:
    """One home: log, store, engine, directory and as many agents, one after another, as a test wants."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home, telemetry_seconds=0.02)
        self.log = open_transport(self.settings.resolved_log_url)
        self.store = TensorStore(self.settings.resolved_store_url)
        self.telemetry = self.log.consumer([contracts.TOPIC_ENGINE_TELEMETRY], None)
        self.reports: list[EngineTelemetry] = []
        self.engine = Engine()
        self.directory = TenantDirectory()
        self.away = threading.Event()
        self.agent: Agent | None = None

    def open(self) -> Transport:
        """The agent's own connection."""
        if self.away.is_set():
            raise TransportUnavailableError("the log is away")
        return open_transport(self.settings.resolved_log_url)

    def start(self) -> Agent:
        """Start an agent over a fresh directory."""
        self.directory = TenantDirectory()
        self.agent = Agent(
            self.settings,
            self.engine,
            self.directory,
            self.open,
            engine_id=ENGINE,
            target_sha256=TARGET,
            turbo_sha256=TURBO,
        )
        self.agent.start()
        return self.agent

    def stop(self) -> None:
        """Stop the agent, if one runs."""
        if self.agent is not None:
            self.agent.stop()
            self.agent = None

    def tell(self, message: TenantChanged | PolicyDecided) -> None:
        """Write an account or a policy as the controller does."""
        topic = (
            contracts.TOPIC_TENANT_CHANGED
            if isinstance(message, TenantChanged)
            else contracts.TOPIC_POLICY_DECIDED
        )
        self.log.send(topic, message.tenant, contracts.encode(message))

    def adapter(self, tenant: str = "acme", version: int = 1, **changes: Any) -> AdapterReference:
        """Store an adapter and name it."""
        path = self.settings.home / "made.safetensors"
        path.write_bytes(f"{tenant}@{version}".encode())
        stored = self.store.put_file(tenant, f"adapters/{version}.safetensors", path)
        fields: dict[str, Any] = {
            "tenant": tenant,
            "version": version,
            "uri": stored.uri,
            "sha256": stored.sha256,
            "target_sha256": TARGET,
            "turbo_sha256": TURBO,
            "rank": 8,
        }
        return AdapterReference(**(fields | changes))

    def report(self) -> EngineTelemetry | None:
        """The newest telemetry."""
        for record in self.telemetry.poll(0.0):
            assert record.key == ENGINE
            assert record.value is not None
            self.reports.append(contracts.decode(record.value, EngineTelemetry))
        return self.reports[-1] if self.reports else None

    def acknowledged(self, tenant: str = "acme") -> int | None:
        """Policy version in force, as telemetry says."""
        report = self.report()
        return report.acknowledged.get(tenant) if report is not None else None

    def acknowledges(self, policy_version: int) -> bool:
        """Whether acme's policy is in force."""
        return self.acknowledged() == policy_version

    def refusal(self, tenant: str = "acme") -> tuple[int, str] | None:
        """Policy version refused and why, as telemetry says."""
        report = self.report()
        if report is None or tenant not in report.refused:
            return None
        return report.refused_policies[tenant], report.refused[tenant]

    def knows(self, key: str) -> bool:
        """Whether the endpoint would serve a key."""
        try:
            self.directory.authenticate(f"Bearer {key}")
        except EndpointError:
            return False
        return True

    def saved(self) -> dict[str, Any]:
        """The state file."""
        path = self.settings.home / "endpoint" / "state.json"
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return state


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A home with an empty log; its agent runs rounds as fast as it can."""
    monkeypatch.setattr(agent_module, "_POLL_SECONDS", 0.005)
    monkeypatch.setattr(agent_module, "_RETRY_SECONDS", 0.02)
    made = Stack(tmp_path)
    yield made
    made.stop()
    made.log.close()


def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


def next_report(stack: Stack, count: int = 2) -> EngineTelemetry:
    """A report that was begun after this call."""
    stack.report()
    seen = len(stack.reports)
    eventually(lambda: stack.report() and len(stack.reports) >= seen + count)
    return stack.reports[-1]


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


def test_a_full_engine_is_no_refusal(stack: Stack) -> None:
    """A refusal would make the controller withdraw the version for ever: the policy waits for a slot."""
    stack.engine.full = True
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(lambda: len([call for call in stack.engine.calls if call[0] == "commit_adapter"]) >= 2)
    report = next_report(stack)
    assert (report.acknowledged, report.refused) == ({}, {})
    assert stack.directory.admit("acme", None, None).arm is Arm.TURBO
    stack.engine.full = False
    eventually(lambda: stack.acknowledged() == 1)
    assert stack.directory.admit("acme", None, None).version == 1


def test_a_newer_policy_does_not_wait_for_an_older_one(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback takes effect in the next round even while its predecessor waits."""
    monkeypatch.setattr(agent_module, "_RETRY_SECONDS", 3600.0)
    stack.engine.full = True
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(lambda: any(call[0] == "commit_adapter" for call in stack.engine.calls))
    stack.tell(policy(policy_version=2))
    eventually(lambda: stack.acknowledged() == 2)


def test_a_store_that_is_away_is_no_refusal(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter is fetched when the store is back."""
    away = threading.Event()
    away.set()
    fetch = TensorStore.fetch
    tries: list[str] = []

    def flaky(store: TensorStore, uri: str, sha256: str, destination: Path) -> Path:
        tries.append(uri)
        if away.is_set():
            raise StoreUnavailableError("the store is away")
        return fetch(store, uri, sha256, destination)

    monkeypatch.setattr(TensorStore, "fetch", flaky)
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(lambda: len(tries) >= 2)
    assert next_report(stack).refused == {}
    away.clear()
    eventually(lambda: stack.acknowledged() == 1)


def test_a_damaged_local_copy_is_fetched_again(stack: Stack) -> None:
    """A file that a crash left half-written in home does not stand in the way of a restart."""
    champion = stack.adapter()
    stack.tell(policy(champion=champion))
    local = stack.settings.home / "endpoint" / "adapters" / f"{champion.sha256}.safetensors"
    local.parent.mkdir(parents=True)
    local.write_bytes(b"half")
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    assert local.read_bytes() == b"acme@1"


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


def test_a_restart_needs_neither_log_nor_store(stack: Stack) -> None:
    """Accounts, policies and adapters are in home: the endpoint authenticates and speculates as before."""
    stack.tell(account())
    stack.tell(policy(champion=stack.adapter(version=2), policy_version=4, weight=0.5))
    stack.start()
    eventually(lambda: stack.acknowledged() == 4)
    eventually(lambda: stack.saved().get("policies"))
    stack.stop()
    stack.away.set()
    stack.store.delete_tenant("acme")
    stack.engine = Engine()
    stack.start()
    assert stack.knows("acme-key")
    eventually(lambda: stack.engine.versions() == {"acme": 2})
    eventually(lambda: stack.directory.admit("acme", None, None).version == 2)
    assert stack.engine.slots["acme"]["weight"] == 0.5
    stack.away.clear()
    eventually(lambda: stack.reports and next_report(stack).acknowledged == {"acme": 4})


def test_saved_state_is_private(stack: Stack) -> None:
    """It holds key hashes."""
    stack.tell(account())
    stack.start()
    eventually(stack.saved)
    path = stack.settings.home / "endpoint" / "state.json"
    assert path.stat().st_mode & 0o777 == 0o600


def test_serving_goes_on_while_the_log_is_away(stack: Stack) -> None:
    """The agent keeps what it has, and catches up when the log is back."""
    stack.away.set()
    stack.start()
    time.sleep(0.05)
    stack.tell(account())
    stack.tell(policy(champion=stack.adapter()))
    assert not stack.knows("acme-key")
    stack.away.clear()
    eventually(lambda: stack.knows("acme-key"))
    eventually(lambda: stack.acknowledged() == 1)


class Failing:
    """A transport that can be cut off."""

    def __init__(self, inner: Transport, away: threading.Event) -> None:
        self._inner = inner
        self._away = away

    def __getattr__(self, name: str) -> Any:
        if self._away.is_set() and name != "close":
            raise TransportUnavailableError("the log went away")
        return getattr(self._inner, name)

    def consumer(self, topics: list[str], group: str | None) -> Any:
        """A consumer that is cut off together with its transport."""
        return Failing(self._inner.consumer(topics, group), self._away)  # type: ignore[arg-type]  # same treatment


def test_a_log_that_goes_away_later_changes_nothing(stack: Stack) -> None:
    """A cut in mid-service: the adapter serves on, and what was decided meanwhile is applied afterwards."""
    cut = threading.Event()
    plain = stack.open
    stack.open = lambda: Failing(plain(), cut)  # type: ignore[method-assign,assignment,return-value]  # a cuttable log
    stack.tell(account("acme", "first"))
    stack.tell(policy(champion=stack.adapter(version=1)))
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    cut.set()
    stack.tell(account("acme", "second", revision=2))
    stack.tell(policy(champion=stack.adapter(version=2), policy_version=2))
    time.sleep(0.05)
    assert stack.knows("first")
    assert stack.engine.versions() == {"acme": 1}
    stack.engine.calls.clear()
    cut.clear()
    eventually(lambda: stack.acknowledged() == 2)
    assert stack.knows("second")
    assert not stack.knows("first")
    assert ("retire_adapter", "acme") not in stack.engine.calls


def test_the_agent_outlives_an_engine_that_does_not_answer(stack: Stack) -> None:
    """The policy is applied when it answers again; accounts are followed meanwhile."""
    stack.engine.broken = True
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    stack.tell(account())
    eventually(lambda: stack.knows("acme-key"))
    stack.engine.broken = False
    eventually(lambda: stack.acknowledged() == 1)


def test_the_agent_outlives_a_full_disk(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """State that cannot be saved is in force all the same, and saved when there is room again."""
    full = threading.Event()
    full.set()
    save = StateFile.save

    def flaky(file: StateFile, *args: Any) -> None:
        if full.is_set():
            raise OSError(28, "No space left on device")
        save(file, *args)

    monkeypatch.setattr(StateFile, "save", flaky)
    stack.tell(account("acme", "first"))
    stack.start()
    eventually(lambda: stack.knows("first"))
    stack.tell(account("acme", "second", revision=2))
    eventually(lambda: not stack.knows("first"))
    assert stack.saved() == {}
    full.clear()
    eventually(lambda: stack.saved().get("accounts", {}).get("acme", {}).get("revision") == 2)


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
def test_an_evicted_adapter_is_noted(stack: Stack, old_version_in_flight: bool) -> None:
    """When another tenant took the slot, requests are admitted as what they are: turbo's.

    An older version that still drafts for requests in flight does not count as the tenant's adapter.
    """
    stack.tell(policy(champion=stack.adapter(version=2)))
    stack.start()
    eventually(lambda: stack.directory.admit("acme", None, None).version == 2)
    if old_version_in_flight:
        stack.engine.slots["acme"] = stack.engine.slots["acme"] | {"version": 1, "requests": 1}
    else:
        del stack.engine.slots["acme"]
    eventually(lambda: stack.directory.admit("acme", None, None).arm is Arm.TURBO)
    stack.tell(policy(champion=stack.adapter(version=2), policy_version=2))
    eventually(lambda: stack.engine.versions() == {"acme": 2})


def test_a_message_that_does_not_decode_is_left_out(stack: Stack) -> None:
    """One poisoned record neither stops the agent nor touches other tenants."""
    stack.log.send(contracts.TOPIC_POLICY_DECIDED, "acme", b"poison")
    stack.tell(account("other"))
    stack.tell(policy("other", champion=stack.adapter("other")))
    stack.start()
    eventually(lambda: stack.acknowledged("other") == 1)
    assert stack.knows("other-key")


def test_stop_ends_the_thread(stack: Stack) -> None:
    """The engine keeps what is in force; nothing runs on behind a closed endpoint."""
    stack.tell(policy(champion=stack.adapter()))
    agent = stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    agent.stop()
    assert not agent._thread.is_alive()
    assert stack.engine.versions() == {"acme": 1}
