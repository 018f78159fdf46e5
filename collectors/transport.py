"""The log as its users see it: Protocols that every transport keeps, and the plain records they exchange.

A topic is a set of partitions; a record lands in the partition its key hashes to and gets the next offset
there, so the order per key is the order of sending. Delivery is at least once: a consumer of a group resumes
behind its last commit. The contract tests (tests/integration/collectors) are this page, executable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Partition = tuple[str, int]
"""Topic name and partition number."""


class OutgoingRecord(msgspec.Struct, frozen=True):
    """A record to append; its key picks the partition."""

    topic: str
    key: str
    value: bytes | None
    """None is a tombstone: on compacted topics it removes the key."""
    headers: dict[str, bytes] = msgspec.field(default_factory=dict)


class LogRecord(msgspec.Struct, frozen=True):
    """A record as read from the log."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes | None
    headers: dict[str, bytes]
    timestamp: float
    """Unix seconds at which the log accepted it."""


class TransportError(Exception):
    """The log refused an operation; trying again does not help unless something is changed."""


class TransportUnavailableError(TransportError):
    """The log cannot be reached or written at the moment: retry the operation.

    The embedded log kept nothing of it. Kafka may have, where only its answer was lost: readers deduplicate.
    """


class UnknownTopicError(TransportError):
    """A topic that does not exist was named; topics are never made by using them."""

    def __init__(self, topic: str, known: Sequence[str], remedy: str) -> None:
        super().__init__(f"unknown topic {topic!r}: {remedy} (topics there: {', '.join(sorted(known))})")
        self.topic = topic


class OffsetRangeError(TransportError):
    """A range to replay is not wholly in the log: retention removed its start, or its end is yet to come."""


class PartitionNotAssignedError(TransportError):
    """A consumer was asked to seek in a partition that another member of its group reads."""


class Consumer(Protocol):
    """Reads records in order per partition. Used by one thread at a time."""

    def poll(self, timeout: float, max_records: int = 500) -> list[LogRecord]:
        """Return the next records of the partitions assigned here, waiting at most `timeout` seconds for one.

        Raises:
            TransportUnavailableError: the log is away; the position has not moved.
        """

    def commit(self, positions: Mapping[Partition, int] | None = None) -> None:
        """Store where the group goes on after a restart or a move of the partition.

        Positions of partitions that have moved to another member meanwhile are left out: its new owner has
        read them again and will commit them.

        Args:
            positions: Next offset to read per partition; default: behind everything polled.
        """

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Make `offset` the next one polled from this partition (not a commit).

        Raises:
            PartitionNotAssignedError: the partition is not assigned here.
        """

    def lag(self) -> dict[Partition, int]:
        """Offsets between the next one to poll and the end, per partition assigned here."""

    def close(self) -> None:
        """Leave the group, so that its other members take the partitions over at once. Commits nothing."""


class Transport(Protocol):
    """A durable, partitioned log. Safe to use from several threads."""

    def send(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, bytes] | None = None
    ) -> None:
        """Append one record; durable once this or `flush` has returned.

        Raises:
            UnknownTopicError: the topic does not exist.
            TransportUnavailableError: the log is away, locked or full; the record was not acknowledged.
        """

    def send_many(self, batch: Sequence[OutgoingRecord]) -> None:
        """Append records in order, all or none where the log can; errors as `send`."""

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is durable.

        Raises:
            TransportUnavailableError: that took longer than `timeout` seconds, or records were refused.
        """

    def consumer(self, topics: Sequence[str], group: str | None) -> Consumer:
        """Start reading topics.

        Args:
            topics: Topics to read.
            group: Consumers of one group share the partitions; a new group starts at the oldest record. None:
                reads every partition from the oldest record and commits nothing (for compacted topics).
        """

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Offset the next record will get, per partition."""

    def read(self, topic: str, partition: int, first: int, last: int) -> Iterator[LogRecord]:
        """Yield the records with offsets from `first` to `last`, both inclusive, as a replay needs them.

        Raises:
            OffsetRangeError: the range is not wholly in the log.
        """

    def close(self) -> None:
        """Release files and connections. Idempotent."""
