"""The embedded log as a `Transport`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from collectors.erasure import mention
from collectors.sqlite import erasure, retention
from collectors.sqlite.consumer import SqliteConsumer
from collectors.sqlite.database import Database
from collectors.sqlite.groups import Membership
from collectors.sqlite.records import Records, partition_of
from collectors.sqlite.schema import create_or_check
from collectors.topics import topic_specs
from collectors.transport import (
    LogRecord,
    OffsetRangeError,
    OutgoingRecord,
    TransportUnavailableError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from adaptive.contracts import Watermark
    from collectors.topics import TopicSpec
    from collectors.transport import Partition

_READ_AHEAD: Final = 100


class SqliteTransport:
    """A durable log in one SQLite file that any number of processes of one machine use at once.

    Args:
        path: The file; it and its directory are made where missing.
        specs: Topics to create where missing; default: those of the contracts.
        partitions: Partitions of topics created now.
        busy_seconds: Wait for another process's write transaction before giving up.
        lease_seconds: A group member that gave no sign for this long loses its partitions.
        clock: Unix seconds.

    Raises:
        TransportError: the file is no log, or of a newer version.
        TransportUnavailableError: the file cannot be made or opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        specs: Sequence[TopicSpec] | None = None,
        partitions: int = 4,
        busy_seconds: float = 30.0,
        lease_seconds: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lease_seconds: Final = lease_seconds
        self._clock: Final = clock
        self._consumers: Final[set[SqliteConsumer]] = set()
        self._lock: Final = threading.Lock()
        self._housekeeping_at = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TransportUnavailableError(
                f"cannot make the directory of the log {path} ({error}): make it, or name another (log_url)"
            ) from error
        self._database: Final = Database(path, busy_seconds)
        self._records: Final = Records(self._database, clock)
        try:
            with self._database.write() as connection:
                # Whoever opens the log without saying how long it keeps records leaves that as it is.
                wanted = topic_specs() if specs is None else specs
                create_or_check(connection, path, wanted, partitions, update=specs is not None)
        except BaseException:
            self._database.close()
            raise
        self._topics: dict[str, tuple[bool, tuple[int, ...]]] = {}

    def send(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, bytes] | None = None
    ) -> None:
        """Append one record; it is on disk when this returns."""
        self.send_many([OutgoingRecord(topic, key, value, dict(headers or {}))])

    def send_many(self, batch: Sequence[OutgoingRecord]) -> None:
        """Append records in one transaction: all or none."""
        rows = []
        for record in batch:
            compacted, parts = self._topic(record.topic)
            rows.append((record, parts[partition_of(record.key, len(parts))], compacted))
        if rows:
            self._records.append(rows)
            self._housekeep()

    def flush(self, timeout: float) -> None:
        """Return at once: `send` only returns when its record is on disk."""

    def consumer(self, topics: Sequence[str], group: str | None) -> SqliteConsumer:
        """Start reading topics; see `Transport.consumer`."""
        parts = {
            (topic, number): part for topic in topics for number, part in enumerate(self._topic(topic)[1])
        }
        membership = None
        if group is not None:
            membership = Membership(self._database, group, topics, self._lease_seconds, self._clock)
        consumer = SqliteConsumer(self._records, parts, membership, self._forget)
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Offset the next record will get, per partition."""
        parts = self._topic(topic)[1]
        ends = self._records.ends(parts)
        return {number: ends[part] for number, part in enumerate(parts)}

    def read(self, topic: str, partition: int, first: int, last: int) -> Iterator[LogRecord]:
        """Yield a range of records; see `Transport.read`."""
        parts = self._topic(topic)[1]
        if not 0 <= partition < len(parts):
            raise OffsetRangeError(f"{topic!r} has no partition {partition}, only 0 to {len(parts) - 1}")
        part = parts[partition]
        start, end = self._records.bounds(part)
        if first < start or last >= end:
            raise OffsetRangeError(
                f"offsets {first} to {last} of partition {partition} of {topic!r} are not wholly in the log, "
                f"which holds {start} to {end - 1}: replay a later range, or keep records longer (retention)"
            )
        return self._range(part, (topic, partition), first, last)

    def enforce_retention(self) -> int:
        """Delete what is past its retention now; returns the number of records deleted.

        Appending does this by itself, at most once a minute over all processes.
        """
        return retention.enforce(self._database, self._clock())

    def erase(self, tenant: str, watermarks: Collection[Watermark]) -> dict[str, int]:
        """Delete an erased tenant's records now; see `collectors.erasure.ErasableLog`."""
        return erasure.erase(self._database, mention(tenant), tenant, watermarks)

    def forget(self, topic: str, partition: int, offsets: Collection[int]) -> int:
        """Delete single records now; see `collectors.dead_letters.ForgettingLog`."""
        return erasure.forget(self._database, topic, partition, offsets)

    def expire(self, tenant: str, before: float, most_bytes: int | None) -> int:
        """Delete a tenant's old records; see `collectors.erasure.ErasableLog`."""
        return erasure.expire(self._database, tenant, before, most_bytes)

    def close(self) -> None:
        """Close every consumer and connection."""
        for consumer in list(self._consumers):
            consumer.close()
        self._database.close()

    def _topic(self, name: str) -> tuple[bool, tuple[int, ...]]:
        """Whether the topic is compacted, and its partition ids by number."""
        if name not in self._topics:
            self._topics = self._load_topics()
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopicError(
                name, list(self._topics), "use a topic of adaptive.contracts; topics are not made by use"
            ) from None

    def _load_topics(self) -> dict[str, tuple[bool, tuple[int, ...]]]:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT name, compacted, part.id FROM topic JOIN part ON part.topic_id = topic.id "
                "ORDER BY name, number"
            ).fetchall()
        topics: dict[str, tuple[bool, tuple[int, ...]]] = {}
        for name, compacted, part in rows:
            topics[name] = bool(compacted), (*topics.get(name, (False, ()))[1], part)
        return topics

    def _range(self, part: int, name: Partition, first: int, last: int) -> Iterator[LogRecord]:
        while first <= last:
            found = self._records.fetch(part, name, first, _READ_AHEAD, last)
            yield from found
            first = found[-1].offset + 1 if found else last + 1

    def _housekeep(self) -> None:
        now = time.monotonic()
        if now < self._housekeeping_at:
            return
        self._housekeeping_at = now + retention.INTERVAL_SECONDS
        if retention.claim(self._database, self._clock()):
            self.enforce_retention()

    def _forget(self, consumer: SqliteConsumer) -> None:
        with self._lock:
            self._consumers.discard(consumer)
