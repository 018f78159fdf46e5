"""Reading beside the consumers, sending again and settling dead letters, on every transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adaptive.contracts import (
    DEAD_LETTER_SUFFIX,
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    TenantErased,
    encode,
)
from collectors.consumer import TraceConsumer
from collectors.dead_letters import AlreadyHandledError, DeadLetters, ForgettingLog
from collectors.erasure import watermarks
from collectors.inspection import Selection, TraceReader
from collectors.resend import lies_in, resend
from tests.unit.cli.traces import HEADERS, send, trace

if TYPE_CHECKING:
    from collectors.inspection import Found
    from collectors.transport import Transport

EVERYTHING = Selection()


@pytest.fixture
def full(transport: Transport) -> Transport:
    """A log with the traces of three tenants and one poison record."""
    send(transport, *(trace(f"tenant-{number % 3}", f"r{number}") for number in range(300)))
    transport.send(TOPIC_TRACE_RECORDED, "tenant-0", b"\xc1", HEADERS)
    return transport


def ids(found: list[Found]) -> list[str]:
    """Request ids in order."""
    return [one.trace.request_id for one in found]


def test_a_scan_sees_everything_once_and_in_order_per_tenant(full: Transport) -> None:
    """Up to the ends as they were when it began; consumers of the same topic notice nothing."""
    with TraceReader(full) as reader:
        scan = reader.scan(EVERYTHING)
        first = next(scan)
        send(full, trace("tenant-0", "late"))
        found = [first, *scan]
        assert sorted(ids(found)) == sorted(f"r{number}" for number in range(300))
        for tenant in range(3):
            own = [one for one in found if one.trace.tenant == f"tenant-{tenant}"]
            assert ids(own) == [f"r{number}" for number in range(tenant, 300, 3)]
        assert reader.unreadable == 1
        assert "late" in ids(list(reader.scan(Selection(tenants=frozenset({"tenant-0"})))))


def test_the_newest_and_what_follows(full: Transport) -> None:
    """The newest of a tenant, however far back, then what comes after, once."""
    chosen = Selection(tenants=frozenset({"tenant-1"}))
    send(full, *(trace("noise", f"n{number}") for number in range(200)))
    with TraceReader(full) as reader:
        assert ids(reader.newest(chosen, 2)) == ["r295", "r298"]
        send(full, trace("tenant-2", "unseen"), trace("tenant-1", "seen"))
        followed: list[Found] = []
        for _ in range(20):
            followed += reader.follow(chosen, 0.5)
            if followed:
                break
        assert ids(followed) == ["seen"]


def test_erased_tenants_do_not_exist(full: Transport) -> None:
    """Below the watermark nothing of the tenant is found; the others are untouched."""
    marks = watermarks(full, [TOPIC_TRACE_RECORDED])
    erased = TenantErased("tenant-1", "e", generation=-1, erased_at=0.0, watermarks=marks)
    full.send(TOPIC_TENANT_ERASED, "tenant-1", encode(erased))
    with TraceReader(full) as reader:
        assert {one.trace.tenant for one in reader.scan(EVERYTHING)} == {"tenant-0", "tenant-2"}
        assert reader.erased == 100


def test_a_session_sent_again_is_the_same(full: Transport) -> None:
    """Read back with one sha256; a record knows the topic that it lies in."""
    with TraceReader(full) as reader:
        session = [one.record for one in reader.scan(Selection(tenants=frozenset({"tenant-2"})))]
    assert lies_in(session[0], full, TOPIC_TRACE_RECORDED)
    first = resend(session, full, TOPIC_TRACE_RECORDED)
    assert first.records == 100
    with TraceReader(full) as reader:
        copies = [one.record for one in reader.scan(Selection(tenants=frozenset({"tenant-2"})))][100:]
    assert [(one.key, one.value, one.headers) for one in copies] == [
        (one.key, one.value, one.headers) for one in session
    ]
    assert resend(copies, full, TOPIC_TRACE_RECORDED).sha256 == first.sha256


def test_dead_letters_go_back_once_or_are_dropped(full: Transport) -> None:
    """Replayed to their topic as they were; handled ones are refused; dropped ones deleted or marked."""
    consumer = TraceConsumer(full, "learners")
    letters = DeadLetters(full, TOPIC_TRACE_RECORDED)

    def consume(dead: int) -> None:
        for _ in range(40):
            consumer.poll(0.5)
            if consumer.dead_lettered == dead:
                return
        raise AssertionError("the poison record was not given up")

    consume(1)
    (letter,) = letters.read()
    assert letter.tenant == "tenant-0"
    ends = full.end_offsets(TOPIC_TRACE_RECORDED)
    letters.replay([letter])
    partition = letter.origin_partition
    (again,) = full.read(TOPIC_TRACE_RECORDED, partition, ends[partition], ends[partition])
    assert (again.key, again.value, again.headers) == ("tenant-0", b"\xc1", HEADERS)
    with pytest.raises(AlreadyHandledError, match="was replayed before"):
        letters.replay([letter])
    consume(2)
    consumer.close()
    replayed, second = letters.read()
    assert (replayed.handled, second.handled) == ("replayed", "")
    deleted = letters.drop([second])
    assert deleted == isinstance(full, ForgettingLog)
    states = [one.handled for one in letters.read()]
    assert states == (["replayed"] if deleted else ["replayed", "dropped"])
    assert letters.read()[0].topic == TOPIC_TRACE_RECORDED + DEAD_LETTER_SUFFIX
