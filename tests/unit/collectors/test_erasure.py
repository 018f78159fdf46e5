"""Which records an erasure takes in, in whatever order its announcements arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.contracts import (
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    TenantErased,
    Watermark,
    encode,
)
from collectors.erasure import ErasedTenants, covers, later_of, watermarks
from collectors.sqlite import SqliteTransport

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TOPIC = TOPIC_TRACE_RECORDED
PARTITIONS = 3
OFFSETS = st.integers(0, 50)
MARKS = st.dictionaries(st.integers(0, PARTITIONS - 1), OFFSETS).map(
    lambda marks: [Watermark(TOPIC, partition, offset) for partition, offset in marks.items()]
)
ERASURES = st.builds(
    TenantErased,
    tenant=st.just("acme"),
    erasure_id=st.just("e"),
    generation=st.integers(0, 3),
    erased_at=st.floats(0, 100),
    watermarks=MARKS,
    sealed=st.booleans(),
)
PLACES = [(partition, offset) for partition in range(PARTITIONS) for offset in range(0, 52, 3)]


def erased(*marks: tuple[int, int], generation: int = 0) -> TenantErased:
    """An erasure with watermarks in the trace topic."""
    return TenantErased("acme", "e", generation, 1.0, [Watermark(TOPIC, *mark) for mark in marks])


def test_only_the_tenants_records_below_the_watermark_are_erased() -> None:
    """Other partitions, topics and later records stay."""
    one = erased((1, 10))
    assert covers(one, TOPIC, 1, 9)
    assert not covers(one, TOPIC, 1, 10)
    assert not covers(one, TOPIC, 0, 9)
    assert not covers(one, TOPIC + ".dlq", 1, 9)


def test_a_late_record_of_an_erased_generation_is_erased_wherever_it_lies() -> None:
    """An engine that was cut off appends above the watermark what it recorded before the erasure."""
    one = erased((0, 10), generation=1)
    assert covers(one, TOPIC, 0, 500, generation=1)
    assert covers(one, TOPIC, 2, 500, generation=0)
    assert not covers(one, TOPIC, 0, 500, generation=2)


@given(st.lists(ERASURES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_order_and_repetition_of_announcements_change_nothing(
    announcements: list[TenantErased], chance: object
) -> None:
    """However the log delivers them, at the end exactly what any of them took in is erased."""
    again = [*announcements, *announcements]
    chance.shuffle(again)  # type: ignore[attr-defined]  # random.Random
    known = again[0]
    for other in again[1:]:
        before = {place for place in PLACES if covers(known, TOPIC, *place)}
        known = later_of(known, other)
        assert before <= {place for place in PLACES if covers(known, TOPIC, *place)}, "something came back"
    for partition, offset in PLACES:
        assert covers(known, TOPIC, partition, offset) == any(
            covers(one, TOPIC, partition, offset) for one in announcements
        )
    newest = max(announcements, key=lambda one: (one.generation, one.sealed, one.erased_at))
    assert (known.generation, known.sealed) == (newest.generation, newest.sealed)


@settings(max_examples=15, deadline=None)  # a log each
@given(before=st.integers(0, 8), after=st.integers(0, 8))
def test_a_tenant_of_the_same_name_starts_afresh_above_the_watermark(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int
) -> None:
    """On a real log: everything sent before the erasure is left out, everything sent after it is read."""
    path: Path = tmp_path_factory.mktemp("log") / "log.db"
    transport = SqliteTransport(path, partitions=2)
    with ErasedTenants(transport) as view:
        for number in range(before):
            transport.send(TOPIC, "acme", b"old%d" % number)
            transport.send(TOPIC, "other", b"kept")
        message = msgspec.structs.replace(erased(), watermarks=watermarks(transport, {TOPIC}))
        transport.send(TOPIC_TENANT_ERASED, "acme", encode(message))
        for number in range(after):
            transport.send(TOPIC, "acme", b"new%d" % number)
        assert view.poll().keys() == {"acme"}
        records = transport.consumer([TOPIC], None).poll(0.0)
        kept = [one for one in records if not view.is_erased(TOPIC, one.partition, one.offset, one.key)]
        assert [one.value for one in kept if one.key == "acme"] == [b"new%d" % n for n in range(after)]
        assert len([one for one in kept if one.key == "other"]) == before
        assert view.poll() == {}
    transport.close()


def test_an_old_announcement_that_comes_again_brings_nothing_back(tmp_path: Path) -> None:
    """The outbox may send again after a crash; the view keeps the highest watermarks."""
    transport = SqliteTransport(tmp_path / "log.db")
    with ErasedTenants(transport) as view:
        for message in (erased((0, 5)), erased((0, 9), (1, 2)), erased((0, 5))):
            transport.send(TOPIC_TENANT_ERASED, "acme", encode(message))
        view.poll()
        assert view.is_erased(TOPIC, 0, 8, "acme")
        assert view.is_erased(TOPIC, 1, 1, "acme")
        assert not view.is_erased(TOPIC, 0, 8, "other")
    transport.close()
