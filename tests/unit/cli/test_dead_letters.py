"""`adaptive traces dlq`: what could not be read is listed, sent again once, or dropped, and never shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from adaptive.contracts import (
    DEAD_LETTER_SUFFIX,
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    TenantErased,
    TraceRecord,
    encode,
)
from collectors.consumer import TraceConsumer
from collectors.dead_letters import AlreadyHandledError, DeadLetters, ForgettingLog
from collectors.erasure import watermarks
from collectors.open import open_transport
from tests.unit.cli.traces import HEADERS, send, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typer.testing import Result

    from collectors.transport import Transport

DLQ = TOPIC_TRACE_RECORDED + DEAD_LETTER_SUFFIX
POISON = msgspec.msgpack.encode(
    msgspec.msgpack.decode(encode(trace()))
    | {"segment": "one", "prompt_ids": [4242, 4343], "secret": "hunter2"}
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Transport]:
    """A log in which a consumer met two poison records between good ones."""
    transport = open_transport(f"sqlite:///{tmp_path}/.adaptive/log.db")
    send(transport, trace("acme", "good"))
    transport.send(TOPIC_TRACE_RECORDED, "acme", POISON, HEADERS)
    transport.send(TOPIC_TRACE_RECORDED, "other", b"\xc1")
    consume(transport)
    yield transport
    transport.close()


def consume(transport: Transport) -> list[TraceRecord]:
    """Read as a learner does."""
    consumer = TraceConsumer(transport, "learners")
    received = consumer.poll(1.0)
    consumer.commit()
    consumer.close()
    return [item.message for item in received]


def listed(adaptive: Callable[..., Result], *flags: str) -> list[dict[str, Any]]:
    """`dlq list --json`."""
    result = adaptive("traces", "dlq", "list", "--json", *flags)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.usefixtures("log")
def test_dead_letters_are_listed_with_reason_and_origin(adaptive: Callable[..., Result]) -> None:
    """Tenant, origin and the path of the wrong field; filtered by tenant."""
    first, second = sorted(listed(adaptive), key=lambda one: one["tenant"])
    assert (first["tenant"], second["tenant"]) == ("acme", "other")
    assert "$.segment" in first["reason"]
    assert first["origin_topic"] == TOPIC_TRACE_RECORDED
    assert first["origin_offset"] == 1
    assert first["state"] == "open"
    assert [one["tenant"] for one in listed(adaptive, "--tenant", "other")] == ["other"]
    assert "$.segment" in adaptive("traces", "dlq", "list").stdout


@pytest.mark.usefixtures("log")
def test_show_gives_the_shape_and_nothing_of_the_contents(adaptive: Callable[..., Result]) -> None:
    """Field names of the contracts with types and sizes; no token id, no unknown name, no value."""
    (letter,) = listed(adaptive, "--tenant", "acme")
    for flags in ((), ("--json",)):
        result = adaptive("traces", "dlq", "show", letter["dead_letter"], *flags)
        assert result.exit_code == 0, result.output
        assert "list of 2" in result.stdout
        assert "str of 3" in result.stdout
        for hidden in ("4242", "4343", "hunter2", "secret", "one\n"):
            assert hidden not in result.stdout


def test_a_replayed_dead_letter_goes_back_once_as_it_was(
    adaptive: Callable[..., Result], log: Transport
) -> None:
    """Key, bytes and headers are those of before; it is not listed as open any more, nor sent twice."""
    (letter,) = listed(adaptive, "--tenant", "acme")
    place = letter["dead_letter"]
    partition = letter["origin_partition"]
    end = log.end_offsets(TOPIC_TRACE_RECORDED)[partition]
    assert adaptive("traces", "dlq", "replay", place).exit_code == 0
    (again,) = log.read(TOPIC_TRACE_RECORDED, partition, end, end)
    assert (again.key, again.value, again.headers) == ("acme", POISON, HEADERS)
    assert listed(adaptive, "--tenant", "acme") == []
    (settled,) = listed(adaptive, "--tenant", "acme", "--all")
    assert settled["state"] == "replayed"
    twice = adaptive("traces", "dlq", "replay", place)
    assert twice.exit_code == 1
    assert "was replayed before" in twice.stderr
    assert log.end_offsets(TOPIC_TRACE_RECORDED)[partition] == end + 1
    # Still poison: the consumer gives it up again, as a new dead letter.
    consume(log)
    (new,) = listed(adaptive, "--tenant", "acme")
    assert new["dead_letter"] != place
    assert new["origin_offset"] == end


def test_dropping_deletes_from_the_embedded_log(adaptive: Callable[..., Result], log: Transport) -> None:
    """`drop --all` leaves nothing to list and no byte of them in the topic."""
    result = adaptive("traces", "dlq", "drop", "--all")
    assert result.exit_code == 0, result.output
    assert "2 dead letters deleted" in result.stdout
    assert listed(adaptive, "--all") == []
    ends = log.end_offsets(DLQ)
    assert [one for part, end in ends.items() if end for one in log.read(DLQ, part, 0, end - 1)] == []


class KeepingLog:
    """A log that cannot delete, as Kafka."""

    def __init__(self, log: Transport) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        if name == "forget":
            raise AttributeError(name)
        return getattr(self._log, name)


def test_dropping_marks_where_a_log_cannot_delete(log: Transport) -> None:
    """As on Kafka: the dead letter stays until retention and counts as dropped."""
    keeping: Any = KeepingLog(log)
    assert isinstance(log, ForgettingLog)
    assert not isinstance(keeping, ForgettingLog)
    letters = DeadLetters(keeping, TOPIC_TRACE_RECORDED)
    found = letters.read()
    assert not letters.drop(found)
    assert [letter.handled for letter in letters.read()] == ["dropped", "dropped"]
    with pytest.raises(AlreadyHandledError, match="was dropped before"):
        letters.replay(found)


def test_dead_letters_of_erased_tenants_do_not_exist(adaptive: Callable[..., Result], log: Transport) -> None:
    """Below the watermark of the dead-letter topic they are neither listed nor replayed."""
    (letter,) = listed(adaptive, "--tenant", "acme")
    erased = TenantErased("acme", "e", generation=0, erased_at=0.0, watermarks=watermarks(log, [DLQ]))
    log.send(TOPIC_TENANT_ERASED, "acme", encode(erased))
    assert [one["tenant"] for one in listed(adaptive, "--all")] == ["other"]
    assert adaptive("traces", "dlq", "replay", letter["dead_letter"]).exit_code == 1


def test_dead_letters_with_foreign_headers_are_handled_like_any_other(
    adaptive: Callable[..., Result], log: Transport
) -> None:
    """Anybody may write headers: none hides a dead letter, breaks the list, or sends one elsewhere."""
    settled = {"x-handled": b"replayed", "x-handled-partition": b"0", "x-handled-offset": b"0"}
    foreign: list[dict[str, bytes]] = [
        {"x-handled": b"replayed"},
        settled,
        {"x-original-topic": b"\xff", "x-original-partition": b"9" * 5000, "x-error": b"[/x]\x1b[31m"},
        {"x-original-topic": TOPIC_TENANT_ERASED.encode()},
    ]
    for headers in foreign:
        log.send(DLQ, "foreign", b"\xc1", headers)
    assert len(listed(adaptive, "--tenant", "foreign")) == len(foreign)
    assert "[/x]\\x1b[31m" in adaptive("traces", "dlq", "list").stdout
    before = log.end_offsets(TOPIC_TENANT_ERASED)
    result = adaptive("traces", "dlq", "replay", "--all")
    assert result.exit_code == 0, result.output
    assert log.end_offsets(TOPIC_TENANT_ERASED) == before
    assert listed(adaptive) == []
