"""What every transport keeps; collectors/transport.py in executable form."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from adaptive.contracts import TOPIC_DRAFTER_PUBLISHED as COMPACTED
from adaptive.contracts import TOPIC_ENGINE_TELEMETRY as OTHER
from adaptive.contracts import TOPIC_TRACE_RECORDED as TOPIC
from collectors.transport import (
    OffsetRangeError,
    OutgoingRecord,
    PartitionNotAssignedError,
    UnknownTopicError,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.transport import Consumer, LogRecord, Transport
    from tests.integration.collectors.conftest import Log


KEYS = [f"tenant-{index}" for index in range(12)]
"""Enough to reach every partition."""


def fill(transport: Transport, count: int, topic: str = TOPIC) -> None:
    """Append `count` numbered records, keys in turn."""
    transport.send_many(
        [OutgoingRecord(topic, KEYS[index % len(KEYS)], str(index).encode()) for index in range(count)]
    )
    transport.flush(10)


def gather(poll: Callable[[], list[LogRecord]], count: int) -> list[LogRecord]:
    """Poll until `count` records came, or more with the last of them; fails if they do not in time."""
    deadline = time.monotonic() + 30
    records: list[LogRecord] = []
    while len(records) < count:
        assert time.monotonic() < deadline, f"only {len(records)} of {count} records came in time"
        records += poll()
    return records


def drain(consumer: Consumer, count: int) -> list[LogRecord]:
    """Poll until exactly `count` records came."""
    records = gather(lambda: consumer.poll(0.1), count)
    assert len(records) == count
    return records


def values(records: list[LogRecord]) -> list[int]:
    """Numbers of `fill`."""
    return [int(record.value or b"-1") for record in records]


def test_a_record_comes_back_as_it_was_sent(transport: Transport) -> None:
    """Key, value, headers and the time of acceptance survive, small or large."""
    before = time.time()
    transport.send(TOPIC, "ключ", b"", {"x-empty": b"", "traceparent": b"\x00\xff"})
    transport.send(TOPIC, "ключ", bytes(range(256)) * 4000)
    transport.flush(10)
    small, large = drain(transport.consumer([TOPIC], "group"), 2)
    assert (small.topic, small.key, small.value) == (TOPIC, "ключ", b"")
    assert small.headers == {"x-empty": b"", "traceparent": b"\x00\xff"}
    assert before - 1 <= small.timestamp <= time.time() + 1
    assert (large.value, large.headers) == (bytes(range(256)) * 4000, {})
    assert (small.offset, large.offset, small.partition) == (0, 1, large.partition)


def test_order_per_key_is_the_order_of_sending(transport: Transport) -> None:
    """Records of one key lie in one partition, with rising offsets, in the order they were sent."""
    fill(transport, 240)
    by_key = defaultdict(list)
    for record in drain(transport.consumer([TOPIC], "group"), 240):
        by_key[record.key].append(record)
    assert sorted(by_key) == sorted(KEYS)
    for records in by_key.values():
        assert len({record.partition for record in records}) == 1
        assert [record.offset for record in records] == sorted(record.offset for record in records)
        assert values(records) == sorted(values(records))
    assert len({records[0].partition for records in by_key.values()}) > 1


def test_poll_takes_at_most_what_is_asked_and_starves_no_partition(transport: Transport) -> None:
    """Small polls visit every partition that has records before any is read to its end."""
    fill(transport, 240)
    consumer = transport.consumer([TOPIC], "group")
    records = gather(lambda: consumer.poll(0.1, max_records=5), 60)
    assert len(records) < 65
    assert {record.partition for record in records} == set(transport.end_offsets(TOPIC))


BACKLOG = 12_000
"""Thousands of records in every partition, many times what a consumer fetches at once."""


def fill_backlog(transport: Transport) -> None:
    """Append BACKLOG numbered records of a trace's size that do not compress away."""
    noise = random.Random(0).randbytes(1 << 16)  # noqa: S311  reproducible on purpose
    for first in range(0, BACKLOG, 2000):
        transport.send_many(
            [
                OutgoingRecord(TOPIC, KEYS[index % len(KEYS)], b"%07d" % index + noise[at : at + 1000])
                for index in range(first, first + 2000)
                for at in [index * 61 % 60_000]
            ]
        )
    transport.flush(30)


def numbers_by_partition(records: list[LogRecord]) -> dict[int, list[int]]:
    """Numbers of `fill_backlog` in the order they came."""
    found = defaultdict(list)
    for record in records:
        found[record.partition].append(int((record.value or b"")[:7]))
    return found


@pytest.mark.parametrize("max_records", [150, 2000])
def test_a_long_backlog_is_read_to_its_end_across_commits_and_a_restart(log: Log, max_records: int) -> None:
    """Thousands of records per partition come once each and in order; a restart goes on where it left off."""
    transport = log.open()
    consumer = transport.consumer([TOPIC], "group")
    fill_backlog(transport)

    def poll() -> list[LogRecord]:
        found = consumer.poll(0.1, max_records)
        consumer.commit()
        return found

    got = gather(poll, BACKLOG // 2)
    consumer.close()
    consumer = transport.consumer([TOPIC], "group")
    got += gather(poll, BACKLOG - len(got))
    assert consumer.poll(0.1) == []
    assert set(consumer.lag().values()) == {0}
    parts = numbers_by_partition(got)
    assert sorted(number for part in parts.values() for number in part) == list(range(BACKLOG))
    assert all(part == sorted(part) for part in parts.values())


def test_seeking_within_a_long_backlog_loses_and_mixes_nothing(transport: Transport) -> None:
    """After a seek back the partition comes again from there in order, while the others just go on."""
    consumer = transport.consumer([TOPIC], "group")
    fill_backlog(transport)
    before = numbers_by_partition(gather(lambda: consumer.poll(0.1, 300), BACKLOG // 3))
    partition = max(before, key=lambda number: len(before[number]))
    consumer.seek(TOPIC, partition, 100)
    again = before[partition][100:]
    after = numbers_by_partition(
        gather(lambda: consumer.poll(0.1, 300), BACKLOG - sum(map(len, before.values())) + len(again))
    )
    assert after[partition][: len(again)] == again
    whole = [*before[partition][:100], *after[partition]]
    whole += [number for other in before.keys() - {partition} for number in before[other] + after[other]]
    assert sorted(whole) == list(range(BACKLOG))


def test_a_partitions_long_backlog_does_not_hold_up_the_others(transport: Transport) -> None:
    """What comes to a quiet partition is polled long before the busy one's backlog is at its end."""
    consumer = transport.consumer([TOPIC], "group")
    busy = [OutgoingRecord(TOPIC, KEYS[0], b"%07d" % index + bytes(1000)) for index in range(BACKLOG)]
    transport.send_many(busy)
    transport.flush(30)
    got = gather(lambda: consumer.poll(0.1, 100), 1000)
    partition = got[0].partition
    for key in KEYS:
        transport.send(TOPIC, key, b"quiet")
    transport.flush(10)
    polls = 0
    while {record.partition for record in got} != set(transport.end_offsets(TOPIC)):
        got += consumer.poll(0.1, 100)
        polls += 1
        assert polls < 40, f"after {len(got)} records of partition {partition} nothing came of the others"


def test_groups_are_independent_and_start_at_the_oldest_record(transport: Transport) -> None:
    """A group that appears later reads everything that is there; another's commits do not matter to it."""
    fill(transport, 24)
    first = transport.consumer([TOPIC], "first")
    drain(first, 24)
    first.commit()
    assert sorted(values(drain(transport.consumer([TOPIC], "second"), 24))) == list(range(24))


def test_a_restart_goes_on_behind_the_last_commit(log: Log) -> None:
    """What was committed does not come again, what was polled but not committed does."""
    transport = log.open()
    fill(transport, 24)
    consumer = transport.consumer([TOPIC], "group")
    drain(consumer, 24)
    consumer.commit()
    fill(transport, 12)
    drain(consumer, 12)
    transport.close()
    again = log.open().consumer([TOPIC], "group")
    assert sorted(values(drain(again, 12))) == list(range(12))


def test_commit_of_positions_covers_only_what_they_say(log: Log) -> None:
    """A caller may commit less than it polled, per partition."""
    transport = log.open()
    for number in range(5):
        transport.send(TOPIC, "a", str(number).encode())
    transport.flush(10)
    consumer = transport.consumer([TOPIC], "group")
    records = drain(consumer, 5)
    consumer.commit({(TOPIC, records[1].partition): records[1].offset + 1})
    transport.close()
    assert values(drain(log.open().consumer([TOPIC], "group"), 3)) == [2, 3, 4]


def test_a_killed_consumer_loses_nothing(log: Log) -> None:
    """After kill -9 without a commit, the group's next consumer gets every record again (at least once)."""
    transport = log.open()
    fill(transport, 24)
    victim = log.start("consume", topic=TOPIC, group="group", commit=False)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    for _ in range(24):
        victim.stdout.readline()
    victim.kill()
    victim.wait()
    assert sorted(values(drain(transport.consumer([TOPIC], "group"), 24))) == list(range(24))


def test_two_consumers_share_the_partitions(log: Log) -> None:
    """Members of one group read disjoint partitions, all of them, whichever handle they use."""
    transport = log.open()
    first = transport.consumer([TOPIC], "group")
    second = log.open().consumer([TOPIC], "group")

    def shared() -> bool:
        first.poll(0)
        second.poll(0)
        return len(first.lag()) == len(second.lag()) == len(transport.end_offsets(TOPIC)) / 2

    eventually(shared)
    assert not first.lag().keys() & second.lag().keys()
    fill(transport, 120)
    got = gather(lambda: first.poll(0.1) + second.poll(0.1), 120)
    assert sorted(values(got)) == list(range(120))


def test_a_new_member_waits_until_the_holder_lets_go(log: Log) -> None:
    """Nothing moves while the holder works on what it polled; its commit still counts."""
    transport = log.open()
    fill(transport, 60)
    first = transport.consumer([TOPIC], "group")
    drain(first, 60)
    second = log.open().consumer([TOPIC], "group")
    assert second.poll(0.6 * log.lease_seconds) == []
    assert second.lag() == {}
    first.commit()
    eventually(lambda: first.poll(0) or second.poll(0) or len(second.lag()) > 0)
    assert set(second.lag().values()) == {0}


def test_partitions_of_a_dead_consumer_move(log: Log) -> None:
    """A member that was killed loses its partitions to the others once its lease has expired, not before."""
    transport = log.open()
    victim = log.start("consume", topic=TOPIC, group="group", commit=True)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    survivor = transport.consumer([TOPIC], "group")
    partitions = len(transport.end_offsets(TOPIC))
    eventually(lambda: survivor.poll(0) or len(survivor.lag()) == partitions / 2)
    victim.kill()
    victim.wait()
    killed_at = time.monotonic()
    eventually(lambda: survivor.poll(0) or len(survivor.lag()) == partitions)
    assert time.monotonic() - killed_at < 5 * log.lease_seconds + 2


def test_a_consumer_that_leaves_hands_over_at_once(log: Log) -> None:
    """Closing gives the partitions up without waiting for the lease."""
    transport = log.open()
    first = transport.consumer([TOPIC], "group")
    second = transport.consumer([TOPIC], "group")
    partitions = len(transport.end_offsets(TOPIC))
    first.close()
    started = time.monotonic()
    eventually(lambda: second.poll(0) or len(second.lag()) == partitions)
    assert time.monotonic() - started < log.lease_seconds


def test_long_work_between_polls_keeps_the_partitions(log: Log) -> None:
    """A member that is busy for longer than its lease but alive is not taken for dead."""
    transport = log.open()
    first = transport.consumer([TOPIC], "group")
    second = transport.consumer([TOPIC], "group")
    eventually(lambda: first.poll(0) or second.poll(0) or len(second.lag()) > 0)
    held = set(second.lag())
    end = time.monotonic() + 2.5 * log.lease_seconds
    while time.monotonic() < end:
        first.poll(0.05)
    second.poll(0)
    assert set(second.lag()) == held
    assert not held & set(first.lag())


def test_a_moved_partition_cannot_be_committed_by_its_former_owner(log: Log) -> None:
    """A late commit neither fails nor overwrites the new owner's position."""
    transport = log.open()
    fill(transport, 60)
    first = transport.consumer([TOPIC], "group")
    drain(first, 60)
    second = log.open().consumer([TOPIC], "group")
    eventually(lambda: first.poll(0) or second.poll(0) or len(second.lag()) > 0)
    moved = dict.fromkeys(second.lag(), 1)
    second.commit(moved)
    first.commit({**dict.fromkeys(first.lag(), 2), **dict.fromkeys(moved, 5)})
    second.close()
    first.close()
    third = transport.consumer([TOPIC], "group")
    ends = transport.end_offsets(TOPIC)
    for (topic, partition), behind in third.lag().items():
        assert ends[partition] - behind == (1 if (topic, partition) in moved else 2)


def test_without_a_group_everything_is_read_every_time(transport: Transport) -> None:
    """Readers without a group get all partitions from the oldest record and commit nothing."""
    fill(transport, 24, COMPACTED)
    for _ in range(2):
        reader = transport.consumer([COMPACTED], None)
        assert sorted(values(drain(reader, 24))) == list(range(24))
        reader.commit()
        reader.close()


def test_one_consumer_reads_several_topics(transport: Transport) -> None:
    """Topics of one consumer are told apart by their records."""
    transport.send(TOPIC, "a", b"1")
    transport.send(OTHER, "a", b"2")
    transport.flush(10)
    records = drain(transport.consumer([TOPIC, OTHER], "group"), 2)
    assert {(record.topic, record.value) for record in records} == {(TOPIC, b"1"), (OTHER, b"2")}


def test_tombstones_are_delivered(transport: Transport) -> None:
    """A value of None is a record of its own, not an empty value."""
    transport.send(COMPACTED, "a", b"1")
    transport.send(COMPACTED, "a", None)
    transport.flush(10)
    assert [record.value for record in drain(transport.consumer([COMPACTED], None), 2)] == [b"1", None]


def test_poll_waits_and_wakes_for_a_new_record(log: Log) -> None:
    """An empty poll lasts its timeout; a record of another handle ends it early."""
    consumer = log.open().consumer([TOPIC], "group")
    started = time.monotonic()
    assert consumer.poll(0.3) == []
    assert 0.25 < time.monotonic() - started < 2
    log.start("append", topic=TOPIC, name="a", count=1)
    started = time.monotonic()
    assert [record.value for record in consumer.poll(20)] == [b"a:0"]
    assert time.monotonic() - started < 15


def test_seek_sets_the_next_record(transport: Transport) -> None:
    """Seeking back reads again, without touching what is committed."""
    for number in range(4):
        transport.send(TOPIC, "a", str(number).encode())
    transport.flush(10)
    consumer = transport.consumer([TOPIC], "group")
    partition = drain(consumer, 4)[0].partition
    consumer.seek(TOPIC, partition, 2)
    assert values(drain(consumer, 2)) == [2, 3]


def test_seeking_elsewhere_is_refused(log: Log) -> None:
    """Partitions of other members, and topics that were not asked for, are named in the error."""
    transport = log.open()
    first = transport.consumer([TOPIC], "group")
    second = transport.consumer([TOPIC], "group")
    eventually(lambda: first.poll(0) or second.poll(0) or len(second.lag()) > 0)
    _, partition = next(iter(second.lag()))
    with pytest.raises(PartitionNotAssignedError, match=f"partition {partition} of '{TOPIC}'"):
        first.seek(TOPIC, partition, 0)
    with pytest.raises(PartitionNotAssignedError, match=OTHER):
        first.seek(OTHER, 0, 0)


def test_lag_counts_what_is_left_to_poll(transport: Transport) -> None:
    """Lag falls with polling and is zero at the end."""
    fill(transport, 24)
    consumer = transport.consumer([TOPIC], "group")
    assert sum(consumer.lag().values()) == 24
    drain(consumer, 24)
    assert set(consumer.lag().values()) == {0}


def test_a_range_is_read_inclusively(transport: Transport) -> None:
    """Replay gets exactly the offsets it names, also more than fit one fetch."""
    transport.send_many([OutgoingRecord(TOPIC, "a", str(number).encode()) for number in range(350)])
    transport.flush(10)
    partition = next(number for number, end in transport.end_offsets(TOPIC).items() if end)
    assert values(list(transport.read(TOPIC, partition, 20, 320))) == list(range(20, 321))
    assert values(list(transport.read(TOPIC, partition, 349, 349))) == [349]


@pytest.mark.parametrize(("partition", "first", "last"), [(0, 0, 10_000), (999, 0, 0)])
def test_a_range_that_is_not_there_is_refused(
    transport: Transport, partition: int, first: int, last: int
) -> None:
    """A replay of offsets or partitions that do not exist fails instead of giving less."""
    fill(transport, 48)
    with pytest.raises(OffsetRangeError, match=TOPIC):
        list(transport.read(TOPIC, partition, first, last))


def test_an_unknown_topic_is_named(transport: Transport) -> None:
    """Whatever is done with it, the error names the topic and those that exist; nothing creates it."""
    for use in (
        lambda: transport.send("adaptive.typo.v1", "a", b""),
        lambda: transport.consumer(["adaptive.typo.v1"], None),
        lambda: transport.end_offsets("adaptive.typo.v1"),
    ):
        with pytest.raises(UnknownTopicError, match=rf"adaptive\.typo\.v1.*{TOPIC}") as caught:
            use()
        assert caught.value.topic == "adaptive.typo.v1"


def test_a_batch_with_an_unknown_topic_is_not_kept_in_part(transport: Transport) -> None:
    """The good records before the bad one are not in the log."""
    with pytest.raises(UnknownTopicError):
        transport.send_many([OutgoingRecord(TOPIC, "a", b"1"), OutgoingRecord("adaptive.typo.v1", "a", b"2")])
    assert set(transport.end_offsets(TOPIC).values()) == {0}


def test_processes_append_at_once(log: Log) -> None:
    """Two processes lose nothing and keep their own order while both write."""
    transport = log.open()
    at = time.time() + 1.5
    writers = [log.start("append", topic=TOPIC, name=name, count=150, start_at=at) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    by_key = defaultdict(list)
    for record in drain(transport.consumer([TOPIC], "group"), 300):
        by_key[record.key].append(record.value)
    assert by_key == {name: [f"{name}:{number}".encode() for number in range(150)] for name in ("a", "b")}
