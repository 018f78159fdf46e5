"""What an endpoint does when consent is withdrawn or a tenant is erased; the engine is a fake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from adaptive import contracts
from adaptive.contracts import (
    TOPIC_ERASURE_ACKNOWLEDGED,
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    TOPIC_TENANT_ERASED,
    Arm,
    ErasureAcknowledged,
    TenantErased,
)
from collectors.adapter_files import remove_adapters
from collectors.safetensors import TensorData, serialize
from tests.unit.endpoint.records import account, policy
from tests.unit.endpoint.service import ENGINE, Stack
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A home without an agent."""
    made = Stack(tmp_path)
    yield made
    made.stop()
    made.log.close()


def erasure(generation: int = 0, *, sealed: bool = False) -> TenantErased:
    """An announcement about acme."""
    return TenantErased("acme", "erase_1", generation, 1.0, [], sealed=sealed)


def erase(stack: Stack, message: TenantErased | None = None) -> None:
    """Act as the controller: tombstones, then the announcement."""
    for topic in (TOPIC_TENANT_CHANGED, TOPIC_POLICY_DECIDED):
        stack.log.send(topic, "acme", None)
    stack.log.send(TOPIC_TENANT_ERASED, "acme", contracts.encode(message or erasure()))


def answers(stack: Stack) -> list[ErasureAcknowledged]:
    """What the endpoint acknowledged."""
    reader = stack.log.consumer([TOPIC_ERASURE_ACKNOWLEDGED], None)
    return [contracts.decode(record.value or b"", ErasureAcknowledged) for record in reader.poll(0.0)]


def calls(stack: Stack, method: str) -> list[tuple[object, ...]]:
    """Arguments of an RPC's calls."""
    return [call[1:] for call in stack.engine.calls if call[0] == method]


def adapter_file(stack: Stack, name: str, tenant: str) -> Path:
    """An adapter that an endpoint fetched once."""
    path = stack.settings.home / "endpoint" / "adapters" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    head, *parts = serialize({"a": TensorData("U8", (2,), b"xx")})
    header = json.loads(bytes(head)[8:]) | {"__metadata__": {"tenant": tenant, "version": "1"}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    return path


def test_a_withdrawn_consent_reaches_the_engine_within_a_round(stack: Stack) -> None:
    """Only changes are told; an account seen for the first time is what the engine starts with."""
    stack.tell(account("acme", revision=1, learn=True, share=True))
    stack.tell(account("other", revision=1, learn=True))
    stack.start()
    eventually(lambda: stack.knows("acme-key"))
    stack.tell(account("acme", revision=2, learn=True, share=False))
    eventually(lambda: calls(stack, "set_consent") == [("acme", True, False)])
    stack.tell(account("acme", revision=3, learn=False))
    eventually(lambda: calls(stack, "set_consent")[1:] == [("acme", False, False)])


def test_a_consent_that_the_engine_did_not_hear_is_told_again(stack: Stack) -> None:
    """An engine that does not answer for a moment must not go on recording."""
    stack.tell(account("acme", revision=1, learn=True))
    stack.start()
    eventually(lambda: stack.knows("acme-key"))
    stack.engine.broken = True
    stack.tell(account("acme", revision=2, learn=False))
    eventually(lambda: not stack.directory.accounts()["acme"].learn)
    stack.engine.broken = False
    eventually(lambda: calls(stack, "set_consent") == [("acme", False, False)])


def test_an_erased_tenant_is_gone_from_engine_disk_and_directory(stack: Stack) -> None:
    """Its key is refused, adapter files and saved state are removed, the engine forgot it, all is said."""
    stack.tell(account("acme", revision=1, learn=True))
    stack.tell(account("other", revision=1))
    stack.tell(policy("acme", champion=stack.adapter()))
    stack.start()
    eventually(lambda: stack.admitted() == 1)
    old = adapter_file(stack, "old", "acme")
    erase(stack)
    eventually(lambda: answers(stack))
    assert not stack.knows("acme-key")
    assert stack.knows("other-key")
    assert stack.admitted() == 0
    assert calls(stack, "forget_tenant") == [("acme", 0)]
    assert not old.exists()
    assert "acme" not in json.dumps(stack.saved())
    (answer,) = answers(stack)
    assert (answer.process, answer.done, answer.waiting) == (f"engine {ENGINE}", True, "")
    assert {item.place: item.count for item in answer.removed}["engine adapter files"] == 1


def test_an_erasure_while_the_engine_is_away_is_acknowledged_only_when_it_heard_of_it(stack: Stack) -> None:
    """Nothing is claimed that is not so."""
    stack.tell(account("acme", revision=1))
    stack.start()
    eventually(lambda: stack.knows("acme-key"))
    stack.engine.broken = True
    erase(stack)
    eventually(lambda: not stack.knows("acme-key"))
    assert answers(stack) == []
    stack.engine.broken = False
    eventually(lambda: len(answers(stack)) == 1)


def test_an_endpoint_that_was_down_forgets_at_its_start(stack: Stack) -> None:
    """Its saved state still knew the tenant."""
    stack.tell(account("acme", revision=1))
    stack.start()
    eventually(lambda: "acme" in json.dumps(stack.saved()))
    stack.stop()
    file = adapter_file(stack, "old", "acme")
    erase(stack)
    stack.start()
    eventually(lambda: len(answers(stack)) == 1)
    assert not file.exists()
    assert "acme" not in json.dumps(stack.saved())


def test_a_tenant_created_again_keeps_what_is_its_own(stack: Stack) -> None:
    """An endpoint that reads of the former tenant's erasure later leaves the new one alone."""
    erase(stack, erasure(generation=0, sealed=True))
    stack.tell(msgspec.structs.replace(account("acme", revision=5, learn=True), generation=1))
    stack.start()
    eventually(lambda: stack.knows("acme-key"))
    eventually(stack.report)
    assert calls(stack, "forget_tenant") == []
    assert answers(stack) == [], "a sealed erasure waits for nobody"


def test_a_turbo_with_the_tenants_data_is_retired_and_named(stack: Stack) -> None:
    """Everybody is served without speculation until another turbo runs; meanwhile the job waits."""
    stack.turbo_tenants = ("acme",)
    stack.tell(account("other", revision=1))
    stack.start()
    eventually(lambda: stack.knows("other-key"))
    erase(stack)
    eventually(lambda: answers(stack))
    (answer,) = answers(stack)
    assert not answer.done
    assert answer.retired[0].startswith("turbo ")
    assert "ADAPTIVE_TURBO" in answer.waiting
    assert stack.directory.admit("other", None, None).arm is Arm.OFF


def test_adapter_files_are_told_apart_by_what_they_say(stack: Stack) -> None:
    """By tenant or by checksum; another's stays, and so does what is no adapter."""
    files = {name: adapter_file(stack, name, name) for name in ("acme", "other", "derived")}
    junk = files["acme"].with_name("junk.safetensors")
    junk.write_bytes(b"\xff" * 20)
    assert remove_adapters(junk.parent, {"acme"}, {"derived"}) == 2
    assert sorted(path.name for path in junk.parent.iterdir()) == ["junk.safetensors", "other.safetensors"]
