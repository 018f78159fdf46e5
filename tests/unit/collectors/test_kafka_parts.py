"""Parts of the Kafka transport that need no broker."""

from __future__ import annotations

import pytest

from collectors.kafka.buffer import Buffer
from collectors.kafka.records import partition_of
from collectors.transport import LogRecord


def records(partition: int, first: int, count: int) -> list[LogRecord]:
    """Numbered records of a partition."""
    return [LogRecord("t", partition, offset, "k", b"", {}, 0.0) for offset in range(first, first + count)]


@pytest.mark.parametrize(("key", "partition"), [("acme", 0), ("tenant-0", 4), ("ключ", 8), ("", 9)])
def test_a_keys_partition_never_changes(key: str, partition: int) -> None:
    """murmur2 as Kafka's Java client has it: whatever these were once, records of years lie by them."""
    assert partition_of(key, 12) == partition


def test_a_hot_partition_does_not_take_the_batch() -> None:
    """Every partition gets its share; what one does not need the others get; order per partition stays."""
    buffer = Buffer()
    buffer.add(("t", 0), records(0, 0, 1000))
    buffer.add(("t", 1), records(1, 5, 3))
    buffer.add(("t", 2), records(2, 0, 40))
    batch = buffer.take(60)
    taken = {number: [each.offset for each in batch if each.partition == number] for number in range(3)}
    assert taken[1] == [5, 6, 7]
    assert {len(taken[0]), len(taken[2])} == {28, 29}
    assert taken[0] == list(range(len(taken[0])))
    assert buffer.first(("t", 0)) == len(taken[0])
    assert buffer.first(("t", 1)) is None


def test_what_was_given_up_is_not_handed_out() -> None:
    """Records of a partition that moved away are forgotten."""
    buffer = Buffer()
    buffer.add(("t", 0), records(0, 0, 5))
    buffer.add(("t", 1), records(1, 0, 2))
    buffer.drop([("t", 0), ("t", 7)])
    assert [each.partition for each in buffer.take(10)] == [1, 1]
    assert not buffer
    assert buffer.take(10) == []


def test_the_buffer_knows_how_much_it_holds() -> None:
    """Its size follows what comes, what is handed out and what is given up, down to nothing."""
    buffer = Buffer()
    buffer.add(("t", 0), [LogRecord("t", 0, 0, "k", bytes(4000), {}, 0.0)])
    alone = buffer.size
    assert 4000 < alone < 5000
    buffer.add(("t", 1), records(1, 0, 10))
    buffer.take(3)
    assert buffer.size > 0
    buffer.drop([("t", 0), ("t", 1)])
    assert buffer.size == 0
