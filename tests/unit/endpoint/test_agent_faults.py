"""The agent when log, store, disk or engine fail, and after a restart."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from adaptive import contracts
from adaptive.contracts import Arm
from adaptive.endpoint import placement
from adaptive.endpoint.saved import StateFile
from collectors.store import StoreUnavailableError, TensorStore
from collectors.transport import Transport, TransportUnavailableError
from tests.unit.endpoint.records import account, policy
from tests.unit.endpoint.service import Engine, Stack, next_report
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class SlowEngine(Engine):
    """Reads adapters when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.read = threading.Event()

    def staged_adapter(self, tenant: str, version: int) -> tuple[str, str]:
        """Still loading until then."""
        self.asked.set()
        return super().staged_adapter(tenant, version) if self.read.is_set() else ("loading", "")


def test_a_full_engine_is_no_refusal(stack: Stack) -> None:
    """A refusal would make the controller withdraw the version for ever: it comes in with a later request."""
    stack.engine.full = True
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(lambda: stack.acknowledged() == 1)
    assert next_report(stack).refused == {}
    assert stack.engine.staged == {}
    stack.engine.full = False
    assert stack.directory.admit("acme", None, None).arm is Arm.TURBO
    eventually(lambda: stack.admitted() == 1)


def test_a_newer_policy_does_not_wait_for_an_older_one(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback takes effect in the next round even while its predecessor waits."""
    monkeypatch.setattr(placement, "RETRY_SECONDS", 3600.0)
    tries: list[str] = []

    def away(_store: TensorStore, uri: str, *_: object) -> Path:
        tries.append(uri)
        raise StoreUnavailableError("the store is away")

    monkeypatch.setattr(TensorStore, "fetch", away)
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(lambda: tries)
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


def test_a_revoked_key_does_not_wait_for_a_slow_adapter(stack: Stack) -> None:
    """Accounts are followed while another tenant's adapter is read, which may take a minute."""
    slow = SlowEngine()
    stack.engine = slow
    stack.tell(account("other", "leaked"))
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(slow.asked.is_set)
    assert stack.knows("leaked")
    stack.tell(account("other", "fresh", revision=2))
    eventually(lambda: not stack.knows("leaked"))
    assert stack.knows("fresh")
    assert stack.engine.versions() == {}
    slow.read.set()
    eventually(lambda: stack.acknowledged() == 1)
    eventually(lambda: stack.saved()["accounts"]["other"]["revision"] == 2)


def test_a_log_that_goes_away_does_not_hold_up_a_slow_adapter(stack: Stack) -> None:
    """The adapter comes into service all the same, and accounts are followed again afterwards."""
    slow = SlowEngine()
    stack.engine = slow
    cut = threading.Event()
    plain = stack.open
    stack.open = lambda: Failing(plain(), cut)  # type: ignore[method-assign,assignment,return-value]  # a cuttable log
    stack.tell(account("other", "leaked"))
    stack.tell(policy(champion=stack.adapter()))
    stack.start()
    eventually(slow.asked.is_set)
    cut.set()
    stack.tell(account("other", "fresh", revision=2))
    slow.read.set()
    eventually(lambda: stack.engine.versions() == {"acme": 1})
    assert stack.knows("leaked")
    cut.clear()
    eventually(lambda: stack.knows("fresh"))
    eventually(lambda: stack.acknowledged() == 1)


def test_a_revoked_key_does_not_wait_for_the_next_adapter(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read between two tenants' policies too: after a slow download, before the next one."""
    fetch = TensorStore.fetch
    fetching, revoked = threading.Event(), threading.Event()
    known: list[bool] = []

    def slow(store: TensorStore, uri: str, sha256: str, destination: Path) -> Path:
        if "/acme/" in uri:
            fetching.set()
            assert revoked.wait(10)
        else:
            known.append(stack.knows("leaked"))
        return fetch(store, uri, sha256, destination)

    monkeypatch.setattr(TensorStore, "fetch", slow)
    stack.tell(account("acme", "leaked"))
    for tenant in ("acme", "other"):
        stack.tell(policy(tenant, champion=stack.adapter(tenant)))
    stack.start()
    eventually(fetching.is_set)
    assert stack.knows("leaked")
    stack.tell(account("acme", "fresh", revision=2))
    revoked.set()
    eventually(lambda: stack.acknowledged("other") == 1)
    assert known == [False]


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


def test_state_is_saved_when_it_changed(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in every round: rounds are four a second, for months."""
    saves: list[int] = []
    save = StateFile.save

    def counted(file: StateFile, *args: Any) -> None:
        saves.append(1)
        save(file, *args)

    monkeypatch.setattr(StateFile, "save", counted)
    stack.tell(account())
    stack.start()
    eventually(stack.saved)
    next_report(stack, 5)
    assert len(saves) == 1
    stack.tell(policy())
    eventually(lambda: stack.saved()["policies"])
    next_report(stack, 5)
    assert len(saves) == 2


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
        self.closed = False

    def close(self) -> None:
        """Close, cut off or not."""
        self.closed = True
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        if self._away.is_set():
            raise TransportUnavailableError("the log went away")
        return getattr(self._inner, name)

    def consumer(self, topics: list[str], group: str | None) -> Any:
        """A consumer that is cut off together with its transport."""
        return Failing(self._inner.consumer(topics, group), self._away)  # type: ignore[arg-type]  # same treatment


def test_a_log_that_goes_away_later_changes_nothing(stack: Stack) -> None:
    """A cut in mid-service: the adapter serves on, and what was decided meanwhile is applied afterwards."""
    cut = threading.Event()
    plain = stack.open
    opened: list[Failing] = []

    def cuttable() -> Failing:
        opened.append(Failing(plain(), cut))
        return opened[-1]

    stack.open = cuttable  # type: ignore[method-assign,assignment]  # a cuttable log
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
    assert len(opened) >= 2
    assert [transport.closed for transport in opened[:-1]] == [True] * (len(opened) - 1)


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
