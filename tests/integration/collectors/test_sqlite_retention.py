"""What the embedded log forgets, and what it never does."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.sqlite import SqliteTransport
from collectors.topics import TopicSpec
from collectors.transport import OffsetRangeError, OutgoingRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectors.transport import LogRecord

PLAIN = TopicSpec("plain", retention_seconds=100, retention_bytes=10_000)
COMPACTED = TopicSpec("compacted", compacted=True, retention_seconds=100)


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The log's clock."""
    return Clock()


@pytest.fixture
def transport(tmp_path: Path, clock: Clock) -> Iterator[SqliteTransport]:
    """A log of one plain and one compacted topic of one partition each."""
    opened = SqliteTransport(tmp_path / "log.db", specs=[PLAIN, COMPACTED], partitions=1, clock=clock)
    yield opened
    opened.close()


def contents(transport: SqliteTransport, topic: str) -> list[LogRecord]:
    """Everything a reader without a group sees."""
    reader = transport.consumer([topic], None)
    records = []
    while batch := reader.poll(0):
        records += batch
    reader.close()
    return records


def test_records_go_when_they_are_too_old(transport: SqliteTransport, clock: Clock) -> None:
    """Retention by age removes the old ones only; offsets go on where they were."""
    transport.send("plain", "a", b"old")
    clock.now += 60
    transport.send("plain", "a", b"young")
    clock.now += 50
    assert transport.enforce_retention() == 1
    assert [(record.offset, record.value) for record in contents(transport, "plain")] == [(1, b"young")]
    clock.now += 100
    transport.enforce_retention()
    transport.send("plain", "a", b"new")
    assert [record.offset for record in contents(transport, "plain")] == [2]


def test_records_go_when_there_are_too_many_bytes(transport: SqliteTransport) -> None:
    """Retention by bytes removes the oldest until the rest fits, and no more."""
    values = [number.to_bytes(400, "big") for number in range(100)]
    transport.send_many([OutgoingRecord("plain", "a", value) for value in values])
    transport.enforce_retention()
    kept = [record.value for record in contents(transport, "plain")]
    assert kept == values[-len(kept) :]
    assert 10_000 - 600 < sum(len(value or b"") + 65 for value in kept) <= 10_000
    assert transport.enforce_retention() == 0


def test_many_records_are_deleted_in_slices(transport: SqliteTransport, clock: Clock) -> None:
    """More than one slice of old records goes in one pass."""
    transport.send_many([OutgoingRecord("plain", "a", b"x")] * 2500)
    clock.now += 101
    transport.enforce_retention()
    assert contents(transport, "plain") == []


def test_a_consumer_behind_retention_goes_on_at_the_oldest_record(
    transport: SqliteTransport, clock: Clock
) -> None:
    """What was deleted before it was read is passed over, not waited for."""
    consumer = transport.consumer(["plain"], "group")
    transport.send_many([OutgoingRecord("plain", "a", b"1"), OutgoingRecord("plain", "a", b"2")])
    clock.now += 101
    transport.send("plain", "a", b"3")
    transport.enforce_retention()
    assert [record.value for record in consumer.poll(1)] == [b"3"]


def test_a_replay_of_deleted_records_is_refused(transport: SqliteTransport, clock: Clock) -> None:
    """A range whose start is gone fails, with what is left in the message; the rest can be read."""
    transport.send_many([OutgoingRecord("plain", "a", b"1"), OutgoingRecord("plain", "a", b"2")])
    clock.now += 101
    transport.send("plain", "a", b"3")
    transport.enforce_retention()
    with pytest.raises(OffsetRangeError, match=r"offsets 1 to 2 .* which holds 2 to 2: replay a later range"):
        transport.read("plain", 0, 1, 2)
    assert [record.value for record in transport.read("plain", 0, 2, 2)] == [b"3"]


def test_compaction_keeps_the_latest_of_every_key(transport: SqliteTransport, clock: Clock) -> None:
    """Superseded records go after their time, the latest stay for ever, tombstones remove their key."""
    for key, value in [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("c", None)]:
        transport.send("compacted", key, value)
    transport.enforce_retention()
    assert len(contents(transport, "compacted")) == 5
    clock.now += 101
    transport.send("compacted", "b", b"2")
    transport.enforce_retention()
    assert [(record.key, record.value) for record in contents(transport, "compacted")] == [
        ("a", b"2"),
        ("b", b"2"),
    ]
    clock.now += 1_000_000
    assert transport.enforce_retention() == 0


def test_appending_keeps_house_by_itself(tmp_path: Path, clock: Clock) -> None:
    """A process that appends deletes what is past its time, at most once a minute over all processes."""
    path = tmp_path / "log.db"
    first = SqliteTransport(path, specs=[PLAIN], partitions=1, clock=clock)
    first.send("plain", "a", b"1")
    clock.now += 101
    second = SqliteTransport(path, specs=[PLAIN], partitions=1, clock=clock)
    second.send("plain", "a", b"2")
    assert [record.value for record in contents(first, "plain")] == [b"2"]
    third = SqliteTransport(path, specs=[PLAIN], partitions=1, clock=clock)
    clock.now += 30
    third.send("plain", "a", b"3")
    assert len(contents(first, "plain")) == 2
    for transport in (first, second, third):
        transport.close()


def test_space_of_deleted_records_is_used_again(
    transport: SqliteTransport, clock: Clock, tmp_path: Path
) -> None:
    """A log under retention does not grow without end."""
    sizes = []
    for _ in range(6):
        transport.send_many([OutgoingRecord("plain", "a", bytes([7]) * 400 + bytes(90))] * 500)
        clock.now += 101
        transport.enforce_retention()
        sizes.append((tmp_path / "log.db").stat().st_size)
    assert sizes[-1] <= sizes[1]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.binary(max_size=3))), max_size=30
    ),
    waits=st.lists(st.sampled_from([0, 30, 101]), min_size=30, max_size=30),
)
def test_compaction_never_changes_the_state(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes | None]], waits: list[int]
) -> None:
    """However writes, time and compaction interleave, the log folds to the same value per key, in order."""
    clock = Clock()
    path = tmp_path_factory.mktemp("log") / "log.db"
    transport = SqliteTransport(path, specs=[COMPACTED], partitions=2, clock=clock)
    expected: dict[str, bytes | None] = defaultdict(lambda: None)
    for (key, value), wait in zip(writes, waits, strict=False):
        transport.send("compacted", key, value)
        expected[key] = value
        clock.now += wait
        if wait:
            transport.enforce_retention()
    folded: dict[str, bytes | None] = defaultdict(lambda: None)
    for record in contents(transport, "compacted"):
        folded[record.key] = record.value
    assert {key: folded[key] for key in "abc"} == {key: expected[key] for key in "abc"}
    transport.close()
