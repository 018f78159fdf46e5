"""Typed consumers, dead letters and compacted state over a real log of every transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from adaptive import contracts
from adaptive.contracts import TOPIC_TENANT_CHANGED, TOPIC_TRACE_RECORDED, TenantChanged, TenantState
from collectors.consumer import MessageConsumer, TraceConsumer
from collectors.state import CompactedView
from collectors.transport import OutgoingRecord, TransportUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.transport import LogRecord, Transport
    from tests.integration.collectors.conftest import Log


DEAD_LETTERS = TOPIC_TRACE_RECORDED + ".dlq"


def trace(number: int, tenant: str = "acme") -> contracts.TraceRecord:
    """A small trace."""
    return contracts.TraceRecord(
        trace_id=f"request:{number}",
        tenant=tenant,
        request_id="request",
        segment=number,
        created_at=1.0,
        target_sha256="t",
        turbo_sha256="u",
        tokenizer_sha256="k",
        prompt_ids=[1, 2],
        prompt_length=2,
        output_start=0,
        output_ids=[3],
        steps=[contracts.VerifyStep(contracts.Arm.TURBO, 0, 0, [3], 1, [0.5])],
        sampling=contracts.SamplingSummary(),
        finished=True,
    )


def changed(**fields: Any) -> bytes:
    """A trace that decodes, with some fields beyond what anything here can hold."""
    return contracts.encode(msgspec.structs.replace(trace(1), **fields))


def tenant(name: str, revision: int) -> TenantChanged:
    """A tenant's account."""
    return TenantChanged(
        tenant=name,
        revision=revision,
        state=TenantState.ACTIVE,
        key_hashes=[],
        learn=True,
        share=False,
        freeze=False,
        changed_at=1.0,
    )


def send_trace(transport: Transport, number: int) -> None:
    """Append a trace."""
    transport.send(TOPIC_TRACE_RECORDED, "acme", contracts.encode(trace(number)))


def read_all(transport: Transport, topic: str) -> list[LogRecord]:
    """Everything in a topic."""
    reader = transport.consumer([topic], None)
    records = []
    while any(reader.lag().values()):
        records += reader.poll(0.1)
    reader.close()
    return records


def of_a_newer_version(number: int, **changes: Any) -> bytes:
    """A trace with a field this version does not know, and others changed."""
    fields = msgspec.to_builtins(trace(number))
    return msgspec.msgpack.encode({**fields, "schema_version": 2, "field_of_later": [1], **changes})


def test_traces_come_decoded_with_their_place(transport: Transport) -> None:
    """A trace is equal to what was sent, and says where it lies."""
    send_trace(transport, 0)
    send_trace(transport, 1)
    with TraceConsumer(transport, "learners") as consumer:
        first, second = consumer.poll(5)
        assert (first.message, second.message) == (trace(0), trace(1))
        assert (first.offset, second.offset, first.key) == (0, 1, "acme")
        assert list(transport.read(TOPIC_TRACE_RECORDED, second.partition, second.offset, second.offset))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xc1 not msgpack", "malformed"),
        (b"", "truncated"),
        (contracts.encode(trace(1))[:-9], "truncated"),
        (None, "without a value"),
        (of_a_newer_version(1, steps="moved elsewhere"), r"$.steps"),
        (changed(created_at=float("nan")), "$.created_at"),
        (changed(segment=2**63), "$.segment"),
        (changed(prompt_length=-1), "$.prompt_length"),
        (changed(output_ids=[2**63]), "$.output_ids"),
        (changed(steps=[contracts.VerifyStep(contracts.Arm.TURBO, 2**63, 0, [3], 1, [0.5])]), "$.steps[0]"),
    ],
    ids=[
        "garbage",
        "empty",
        "cut",
        "tombstone",
        "newer schema",
        "time",
        "segment",
        "length",
        "id",
        "version",
    ],
)
def test_a_poison_record_goes_to_the_dead_letters(
    transport: Transport, value: bytes | None, reason: str
) -> None:
    """What cannot be read is kept with reason and origin, and its partition goes on."""
    send_trace(transport, 0)
    transport.send(TOPIC_TRACE_RECORDED, "acme", value, {"traceparent": b"00-1"})
    send_trace(transport, 2)
    consumer = TraceConsumer(transport, "learners")
    received = consumer.poll(5)
    assert [each.message.segment for each in received] == [0, 2]
    (letter,) = read_all(transport, DEAD_LETTERS)
    assert (letter.key, letter.value) == ("acme", value)
    assert reason in letter.headers["x-error"].decode()
    assert letter.headers["x-original-topic"] == TOPIC_TRACE_RECORDED.encode()
    assert letter.headers["x-original-partition"] == str(received[0].partition).encode()
    assert letter.headers["x-original-offset"] == b"1"
    assert letter.headers["traceparent"] == b"00-1"
    assert consumer.dead_lettered == 1


def test_fields_of_a_newer_version_are_ignored(transport: Transport) -> None:
    """A later producer that only added fields is read, not dead-lettered."""
    transport.send(TOPIC_TRACE_RECORDED, "acme", of_a_newer_version(7))
    (received,) = TraceConsumer(transport, "learners").poll(5)
    assert (received.message.segment, received.message.schema_version) == (7, 2)


def test_a_poison_record_is_behind_a_commit_of_what_came_before_it(log: Log) -> None:
    """A poison record at the end of what was handled is not dead-lettered again after a restart."""
    transport = log.open()
    send_trace(transport, 0)
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"poison")
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"poison too")
    consumer = TraceConsumer(transport, "learners")
    (received,) = consumer.poll(5)
    consumer.commit({received.partition: received.offset + 1})
    transport.close()
    again = TraceConsumer(log.open(), "learners")
    assert again.poll(0.1) == []
    assert (again.dead_lettered, sum(again.lag().values())) == (0, 0)


class DeadLettersAway:
    """A transport whose appends fail while it is told so."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.away = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send_many(self, batch: Sequence[OutgoingRecord]) -> None:
        """Append, or fail."""
        if self.away:
            raise TransportUnavailableError("the log is full")
        self._transport.send_many(batch)


def test_nothing_is_skipped_while_dead_letters_cannot_be_written(transport: Transport) -> None:
    """Poison records that cannot be kept stop the poll; everything of it comes again, and once."""
    send_trace(transport, 0)
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"poison")
    send_trace(transport, 2)
    faulty = DeadLettersAway(transport)
    consumer = TraceConsumer(faulty, "learners")
    with pytest.raises(TransportUnavailableError):
        consumer.poll(5)
    assert (consumer.dead_lettered, consumer.statistics().received) == (0, 0)
    faulty.away = False
    assert [each.message.segment for each in consumer.poll(5)] == [0, 2]
    assert len(read_all(transport, DEAD_LETTERS)) == 1
    assert (consumer.dead_lettered, consumer.statistics().received) == (1, 2)


def contradictory(number: int) -> bytes:
    """A trace that accepted more than was drafted."""
    step = contracts.VerifyStep(contracts.Arm.TURBO, 0, 0, [3], 2, [0.5])
    return contracts.encode(msgspec.structs.replace(trace(number), steps=[step]))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (contracts.encode(trace(1, "other")), "tenant 'other' under the key of 'acme'"),
        (contradictory(1), r"$.steps[0]: 2 accepted of 1 drafted"),
        (of_a_newer_version(1, steps="moved"), "schema version 2 is newer than 1"),
    ],
    ids=["another tenant's", "contradictory", "newer"],
)
def test_a_dead_letter_says_what_is_wrong(transport: Transport, value: bytes, reason: str) -> None:
    """A record that contradicts itself is poison too, and one of a newer version is told apart."""
    transport.send(TOPIC_TRACE_RECORDED, "acme", value)
    assert TraceConsumer(transport, "learners").poll(5) == []
    (letter,) = read_all(transport, DEAD_LETTERS)
    assert reason in letter.headers["x-error"].decode()
    assert letter.value == value


def test_a_consumer_says_how_far_behind_it_is(transport: Transport) -> None:
    """Lag counts records that wait; their age shows while there are any."""
    for number in range(5):
        send_trace(transport, number)
    consumer = TraceConsumer(transport, "learners")
    first = consumer.poll(5, 2)
    assert first[0].value == contracts.encode(trace(0))
    statistics = consumer.statistics()
    assert (statistics.received, sum(statistics.lag.values())) == (2, 3)
    assert 0 < statistics.behind_seconds < 60
    consumer.poll(5)
    statistics = consumer.statistics()
    assert (statistics.received, sum(statistics.lag.values()), statistics.behind_seconds) == (5, 0, 0.0)


def test_tombstones_of_compacted_topics_are_passed_over(transport: Transport) -> None:
    """A removed key is no message for a group, and no poison."""
    transport.send(TOPIC_TENANT_CHANGED, "a", contracts.encode(tenant("a", 1)))
    transport.send(TOPIC_TENANT_CHANGED, "a", None)
    consumer = MessageConsumer(transport, TOPIC_TENANT_CHANGED, TenantChanged, "group")
    assert [each.message.revision for each in consumer.poll(5)] == [1]
    assert consumer.dead_lettered == 0


def test_a_view_shows_the_latest_of_every_key(transport: Transport) -> None:
    """The first poll brings everything there is, later ones what changed; a tombstone removes."""
    for name, revision in [("a", 1), ("b", 1), ("a", 2)]:
        transport.send(TOPIC_TENANT_CHANGED, name, contracts.encode(tenant(name, revision)))
    view = CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged)
    assert view.poll() == {"a": tenant("a", 2), "b": tenant("b", 1)}
    assert view.poll() == {}
    transport.send(TOPIC_TENANT_CHANGED, "a", None)
    transport.send(TOPIC_TENANT_CHANGED, "c", contracts.encode(tenant("c", 1)))
    assert view.poll(5) == {"a": None, "c": tenant("c", 1)}
    assert view.latest == {"b": tenant("b", 1), "c": tenant("c", 1)}


def test_a_view_reads_more_than_one_poll_at_once(transport: Transport) -> None:
    """A start with thousands of keys ends with all of them."""
    transport.send_many(
        [
            OutgoingRecord(TOPIC_TENANT_CHANGED, f"tenant-{number}", contracts.encode(tenant("a", number)))
            for number in range(1700)
        ]
    )
    view = CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged)
    assert len(view.poll()) == 1700


def test_a_view_keeps_what_it_could_read(transport: Transport) -> None:
    """An unreadable message changes nothing and is counted."""
    transport.send(TOPIC_TENANT_CHANGED, "a", contracts.encode(tenant("a", 1)))
    transport.send(TOPIC_TENANT_CHANGED, "a", b"garbage")
    view = CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged)
    view.poll()
    assert (view.latest, view.unreadable) == ({"a": tenant("a", 1)}, 1)
