"""Kafka as a `Transport`."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, OffsetSpec, TopicPartition, errors

from collectors.kafka.clients import connect
from collectors.kafka.consumer import KafkaGroupConsumer
from collectors.kafka.errors import translated
from collectors.kafka.options import client_options
from collectors.kafka.producer import Producer
from collectors.kafka.records import log_record
from collectors.transport import (
    OffsetRangeError,
    OutgoingRecord,
    TransportUnavailableError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from adaptive.kafka_settings import KafkaSettings
    from collectors.kafka.address import KafkaAddress
    from collectors.transport import LogRecord

_REMEDY: Final = "run `adaptive topics create`, topics are not made by use"


class KafkaTransport:
    """A log in a Kafka cluster, reached when it is first used: a cluster that is away does not stop a start.

    Sends return when all in-sync replicas have the records. Where the answer is lost, a record that was
    reported as unavailable may be in the log all the same: it is sent again, and readers deduplicate.

    Args:
        address: Brokers and prefix.
        settings: Connection and limits.
        lease_seconds: A group member that gave no sign for this long loses its partitions.
    """

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, *, lease_seconds: float = 10.0
    ) -> None:
        self._address: Final = address
        self._lease_seconds: Final = lease_seconds
        self._options: Final = client_options(address, settings)
        self._producer: Final = Producer(self._options, address, settings.kafka_max_message_bytes)
        self._lock: Final = threading.Lock()
        self._admin: KafkaAdminClient | None = None
        self._partitions: Final[dict[str, int]] = {}
        self._consumers: Final[set[KafkaGroupConsumer]] = set()

    def send(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, bytes] | None = None
    ) -> None:
        """Append one record; see `Transport.send`. Takes `kafka_timeout_seconds` at most."""
        self.send_many([OutgoingRecord(topic, key, value, dict(headers or {}))])

    def send_many(self, batch: Sequence[OutgoingRecord]) -> None:
        """Append records in order; where it fails, some of them may be in the log already."""
        partitions = {topic: self._count(topic) for topic in {record.topic for record in batch}}
        if partitions:
            self._producer.append(batch, partitions)

    def flush(self, timeout: float) -> None:
        """Return at once: `send` only returns when its record is acknowledged."""

    def consumer(self, topics: Sequence[str], group: str | None) -> KafkaGroupConsumer:
        """Start reading topics; see `Transport.consumer`."""
        partitions = {topic: range(self._count(topic)) for topic in topics}
        consumer = KafkaGroupConsumer(
            self._options, self._address, partitions, group, self._lease_seconds, self._consumers.discard
        )
        self._consumers.add(consumer)
        return consumer

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Offset the next record will get, per partition."""
        ends = self._bounds(topic, range(self._count(topic)), OffsetSpec.LATEST)
        return dict(sorted(ends.items()))

    def read(self, topic: str, partition: int, first: int, last: int) -> Iterator[LogRecord]:
        """Yield a range of records; see `Transport.read`."""
        count = self._count(topic)
        if not 0 <= partition < count:
            raise OffsetRangeError(f"{topic!r} has no partition {partition}, only 0 to {count - 1}")
        start = self._bounds(topic, [partition], OffsetSpec.EARLIEST)[partition]
        end = self._bounds(topic, [partition], OffsetSpec.LATEST)[partition]
        if first < start or last >= end:
            raise OffsetRangeError(
                f"offsets {first} to {last} of partition {partition} of {topic!r} are not wholly in the log, "
                f"which holds {start} to {end - 1}: replay a later range, or keep records longer (retention)"
            )
        return self._range(topic, partition, first, last)

    def close(self) -> None:
        """Close every consumer and connection."""
        for consumer in list(self._consumers):
            consumer.close()
        self._producer.close()
        with self._lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _range(self, topic: str, partition: int, first: int, last: int) -> Iterator[LogRecord]:
        key = TopicPartition(self._address.full(topic), partition)
        with translated("start a reader"):
            reader = connect(
                KafkaConsumer,
                **self._options,
                enable_auto_commit=False,
                auto_offset_reset="none",
                allow_auto_create_topics=False,
                fetch_max_bytes=16 << 20,
                metrics_enabled=False,
            )
        with contextlib.closing(reader):
            reader.assign([key])
            reader.seek(key, first)
            waited_since = time.monotonic()
            position = first
            while position <= last:
                with translated("read"), _gone(topic, partition, position):
                    found = reader.poll(timeout_ms=250).get(key, [])
                    moved = reader.position(key)
                for record in found:
                    if record.offset <= last:
                        yield log_record((topic, partition), record)
                # Where compaction took the last records of a range, only the position tells that it is over.
                if moved is not None and moved > position:
                    position, waited_since = moved, time.monotonic()
                elif time.monotonic() - waited_since > self._options["request_timeout_ms"] / 1000:
                    raise TransportUnavailableError(f"cannot read {topic}: no answer from Kafka")

    def _count(self, topic: str) -> int:
        """Number of partitions; it never changes while this product owns the topic."""
        if topic not in self._partitions:
            found = self._ask(lambda admin: admin.describe_topics())
            for item in found:
                name = self._address.short(item["name"])
                if name is not None and not item["is_internal"]:
                    self._partitions[name] = len(item["partitions"])
        if topic not in self._partitions:
            raise UnknownTopicError(topic, list(self._partitions), _REMEDY)
        return self._partitions[topic]

    def _bounds(self, topic: str, partitions: Sequence[int], which: OffsetSpec) -> dict[int, int]:
        full = self._address.full(topic)
        wanted = {TopicPartition(full, partition): which for partition in partitions}
        found = self._ask(lambda admin: admin.list_partition_offsets(wanted))
        return {key.partition: place.offset for key, place in found.items()}

    def _ask(self, question: Callable[[KafkaAdminClient], Any]) -> Any:
        """Ask the cluster something, connecting first where need be."""
        with translated(f"ask Kafka at {', '.join(self._address.servers)}"):
            with self._lock:
                if self._admin is None:
                    self._admin = connect(KafkaAdminClient, **self._options)
                admin = self._admin
            try:
                return question(admin)
            except errors.KafkaError:
                self._discard(admin)
                raise

    def _discard(self, admin: KafkaAdminClient) -> None:
        """Drop a client that failed; the next question makes another."""
        with self._lock:
            if self._admin is admin:
                self._admin = None
        admin.close()


@contextlib.contextmanager
def _gone(topic: str, partition: int, position: int) -> Iterator[None]:
    """Name records that retention took while they were being read."""
    try:
        yield
    except (errors.OffsetOutOfRangeError, errors.NoOffsetForPartitionError) as error:
        raise OffsetRangeError(
            f"offset {position} of partition {partition} of {topic!r} is no longer in the log (retention)"
        ) from error
