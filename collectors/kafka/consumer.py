"""Reading Kafka: a member of a group, or a reader of everything that commits nothing."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import structlog
from kafka import (
    ConsumerRebalanceListener,
    KafkaConsumer,
    OffsetAndMetadata,
    TopicPartition,
    errors,
)
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from collectors.kafka.buffer import Buffer
from collectors.kafka.clients import connect
from collectors.kafka.coordinator import rejoin, steady
from collectors.kafka.errors import translated
from collectors.kafka.records import log_record
from collectors.transport import PartitionNotAssignedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from collectors.kafka.address import KafkaAddress
    from collectors.transport import LogRecord, Partition

_log = structlog.get_logger(__name__)

_READ_AHEAD: Final = 500
"""Records asked of kafka-python at a time."""
_READY_BYTES: Final = 16 << 20
"""Nothing more is taken over while as many bytes wait here, so that a long backlog stays in the broker."""
_PARTITION_BYTES: Final = 256 << 10
"""Most bytes of a partition in one answer; kafka-python hands answers out in turn, so less is fairer."""
_JOIN_SECONDS: Final = 1.0
"""Wait for the group's answer at the start; it may take longer, while another member finishes its work."""
_STEP_SECONDS: Final = 0.05
_PROOF_SECONDS: Final = 2.0
"""How often the brokers are asked whether they are there while no record comes."""
_REJOIN_SECONDS: Final = 3.0
_MOST_REJOIN_SECONDS: Final = 60.0
"""A member without partitions joins again after this long, then half as often each time, up to the second
figure: a leader whose metadata did not know the topics yet leaves everybody without, and kafka-python does
not always notice when it learns of them. A member that a full group has nothing for costs a rebalance a
minute."""
_METADATA_MS: Final = 5_000
"""A group that joined before a new topic was known to every broker gets its partitions this much later."""
_MOST_BETWEEN_POLLS_MS: Final = 3_600_000
"""A member may work on a batch for this long; its heartbeat goes on meanwhile."""


class KafkaGroupConsumer:
    """A `Consumer`; without a group it reads every partition from the start.

    Args:
        options: Of every client (`client_options`).
        address: Names topics and groups in the cluster.
        partitions: Partition numbers of the topics to read.
        group: Group to join, or None.
        lease_seconds: A member that gave no sign for this long loses its partitions.
        on_close: Called once when the consumer closes.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        address: KafkaAddress,
        partitions: Mapping[str, Sequence[int]],
        group: str | None,
        lease_seconds: float,
        on_close: Callable[[KafkaGroupConsumer], None],
    ) -> None:
        self._group: Final = group
        self._timeout_ms: Final = int(options["request_timeout_ms"])
        self._on_close: Final = on_close
        self._address: Final = address
        self._topics: Final = tuple(partitions)
        keys = [
            TopicPartition(address.full(topic), number)
            for topic, numbers in partitions.items()
            for number in numbers
        ]
        self._first_key: Final = keys[0]
        self._buffer: Final = Buffer()
        self._polled: dict[Any, int] = {}
        self._owed: dict[Any, int] = {}
        """Commits that a rebalance came in between; made up for where the partition stays."""
        self._proof_at = time.monotonic()
        self._rejoin_wait = _REJOIN_SECONDS
        self._rejoin_at = float("inf")
        self._closed = False
        with translated("start a consumer"):
            self._consumer: Final = connect(
                KafkaConsumer,
                **options,
                group_id=address.full(group) if group is not None else None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                partition_assignment_strategy=[CooperativeStickyAssignor],
                session_timeout_ms=int(lease_seconds * 1000),
                heartbeat_interval_ms=max(100, int(lease_seconds * 1000 / 5)),
                max_poll_interval_ms=_MOST_BETWEEN_POLLS_MS,
                metadata_max_age_ms=_METADATA_MS,
                fetch_max_wait_ms=250,
                fetch_max_bytes=16 << 20,
                max_partition_fetch_bytes=_PARTITION_BYTES,
                metrics_enabled=False,
            )
            if group is None:
                self._consumer.assign(keys)
                self._consumer.seek_to_beginning()
                return
            steady(self._consumer)
            for topic in partitions:  # into the metadata before a join may make this member the leader
                self._consumer.partitions_for_topic(address.full(topic))
            self._rejoin_at = time.monotonic() + _JOIN_SECONDS + self._rejoin_wait
            self._consumer.subscribe(
                [address.full(topic) for topic in partitions], listener=_Listener(self._revoked)
            )
            deadline = time.monotonic() + _JOIN_SECONDS
            while not self._consumer.assignment() and time.monotonic() < deadline:
                self._fill(_STEP_SECONDS)

    def poll(self, timeout: float, max_records: int = 500) -> list[LogRecord]:
        """Return the next records; see `Consumer.poll`."""
        deadline = time.monotonic() + timeout
        while True:
            with translated("read"):
                self._fill(0.0 if self._buffer else max(0.0, deadline - time.monotonic()))
            batch = self._buffer.take(max_records)
            if batch:
                for record in batch:
                    self._polled[self._key(record.topic, record.partition)] = record.offset + 1
                return batch
            if time.monotonic() >= deadline:
                self._prove()
                return []

    def commit(self, positions: Mapping[Partition, int] | None = None) -> None:
        """Store next offsets of the group, if there is one; see `Consumer.commit`."""
        if self._group is None:
            return
        if positions is None:
            offsets = dict(self._polled)
        else:
            offsets = {self._key(*name): offset for name, offset in positions.items()}
        held = self._consumer.assignment()
        moved = offsets.keys() - held
        if moved:
            _log.info("commit of moved partitions left out", partitions=self._named(moved))
        self._owed |= {key: offset for key, offset in offsets.items() if key in held}
        self._pay()
        self._polled = {key: offset for key, offset in self._polled.items() if key not in offsets}

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Set the next offset to poll; see `Consumer.seek`."""
        key = self._key(topic, partition)
        if key not in self._consumer.assignment():
            raise PartitionNotAssignedError(
                f"partition {partition} of {topic!r} is not assigned to this consumer: another member of its "
                "group reads it; use a consumer without a group, or Transport.read"
            )
        self._consumer.seek(key, offset)
        self._buffer.drop([(topic, partition)])
        if key in self._polled:
            self._polled[key] = offset

    def lag(self) -> dict[Partition, int]:
        """Offsets left to poll per assigned partition; see `Consumer.lag`."""
        with translated("read the lag"):
            if self._group is not None and not self._consumer.assignment():
                self._fill(_STEP_SECONDS)
            held = list(self._consumer.assignment())
            if not held:
                return {}
            ends = self._consumer.end_offsets(held, timeout_ms=self._timeout_ms)
            self._proof_at = time.monotonic()
            return {self._name(key): max(0, ends[key] - self._position(key)) for key in held}

    def close(self) -> None:
        """Leave the group; see `Consumer.close`. A broker that is away does not hold it up for long."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(TransportError):
            self._settle()
        try:
            with translated("leave the group"):
                self._consumer.close(autocommit=False, timeout_ms=min(1000, self._timeout_ms))
        except TransportError as error:
            _log.warning("left the group without saying so: its lease will expire", error=str(error))
        self._on_close(self)

    def _fill(self, wait: float) -> None:
        """Fetch what is ready, waiting at most `wait` seconds for the first record; drives the group too."""
        if self._group is not None and not self._consumer.assignment():
            wait = max(wait, _STEP_SECONDS)  # joining makes no headway without waiting
            self._rejoin()
        # Every partition gets its turn. None is paused: kafka-python 3.0 sets the answer of a paused
        # partition aside, looks at it again only before its first answer of all, and so never fetches that
        # partition again. It fetches none before its last answer is used up, which bounds what it holds.
        for _ in range(1 + len(self._consumer.assignment())):
            full = self._buffer.size >= _READY_BYTES
            # Asking for one drives the group too, and takes over no more than the caller is about to use.
            found = self._consumer.poll(timeout_ms=int(wait * 1000), max_records=1 if full else _READ_AHEAD)
            held = self._consumer.assignment()
            for key, records in found.items():
                if key in held:
                    self._buffer.add(self._name(key), [log_record(self._name(key), item) for item in records])
            if found:
                self._proof_at = time.monotonic()
            if full or not found:
                break
            wait = 0.0
        if self._owed:
            self._pay()

    def _rejoin(self) -> None:
        """Ask for partitions again where none came for long."""
        now = time.monotonic()
        if now < self._rejoin_at:
            return
        self._rejoin_wait = min(2 * self._rejoin_wait, _MOST_REJOIN_SECONDS)
        self._rejoin_at = now + self._rejoin_wait
        _log.info("joining again: no partitions yet", group=self._group)
        rejoin(self._consumer)

    def _pay(self) -> None:
        """Make the commits that are owed; a rebalance in between puts them off."""
        held = self._consumer.assignment()
        self._owed = {key: offset for key, offset in self._owed.items() if key in held}
        if not self._owed:
            return
        with translated("commit"):
            try:
                self._consumer.commit(
                    {key: OffsetAndMetadata(offset, "", -1) for key, offset in self._owed.items()},
                    timeout_ms=self._timeout_ms,
                )
            except (errors.CommitFailedError, errors.RebalanceInProgressError) as error:
                _log.info("commit put off by a rebalance", reason=str(error), owed=self._named(self._owed))
            else:
                self._owed = {}

    def _settle(self) -> None:
        """Make the commits that are owed, and see a rebalance that is in their way through first.

        Left unmade they lose nothing, but the next owner of the partitions reads all of it again.
        """
        self._pay()
        deadline = time.monotonic() + _JOIN_SECONDS
        while self._owed and time.monotonic() < deadline:
            self._fill(_STEP_SECONDS)

    def _position(self, key: Any) -> int:
        ready = self._buffer.first(self._name(key))
        if ready is not None:
            return ready
        position = self._consumer.position(key, timeout_ms=self._timeout_ms)
        if position is None:
            raise errors.KafkaTimeoutError(f"no position in {key.topic} {key.partition} yet")
        return int(position)

    def _prove(self) -> None:
        """Raise where no record came because the brokers are away."""
        if time.monotonic() - self._proof_at < _PROOF_SECONDS:
            return
        with translated("read"):
            self._consumer.end_offsets([self._first_key], timeout_ms=self._timeout_ms)
        self._proof_at = time.monotonic()

    def _revoked(self, keys: Iterable[Any]) -> None:
        """Forget what was read of partitions that go to another member, which reads it again."""
        gone = set(keys)
        self._buffer.drop([self._name(key) for key in gone])
        for known in (self._polled, self._owed):
            for key in gone & known.keys():
                del known[key]
        _log.info("partitions given up", group=self._group, partitions=self._named(gone))

    def _key(self, topic: str, partition: int) -> Any:
        if topic not in self._topics:
            raise PartitionNotAssignedError(
                f"this consumer does not read partition {partition} of {topic!r}: it was opened for "
                f"{', '.join(sorted(self._topics))}"
            )
        return TopicPartition(self._address.full(topic), partition)

    def _name(self, key: Any) -> Partition:
        return self._address.short(key.topic) or key.topic, key.partition

    def _named(self, keys: Iterable[Any]) -> list[Partition]:
        return sorted(self._name(key) for key in keys)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
    """Tells of partitions that move away; runs while the consumer's own thread waits in a poll."""

    def __init__(self, revoked: Callable[[Iterable[Any]], None]) -> None:
        self._revoked: Final = revoked

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Partitions go to another member."""
        self._revoked(revoked)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Nothing to do: positions come from the group's commits."""
