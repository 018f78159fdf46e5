"""Publishing from the engine's process: never blocks, never raises, loses the oldest first.

The caller's thread only appends to a bounded queue. One daemon thread opens the log, writes features to the
store and then the records that refer to them, so that no record points at features that are not there yet.
Messages without features do not wait for a store that is away; traces keep their order, and go without their
features where the store stays away for long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from adaptive import contracts
from collectors.backlog import Backlog, Item
from collectors.backoff import Backoff
from collectors.sampling import Sampler
from collectors.store import StoreUnavailableError
from collectors.transport import OutgoingRecord, TransportError, UnknownTopicError
from collectors.writer import FeatureWriter, WriterStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.features import FeatureMeta, TensorSource
    from collectors.sampling import SamplingStatistics
    from collectors.store import TensorStore
    from collectors.transport import Transport

_log = structlog.get_logger(__name__)

_BATCH: Final = 512
_IDLE_SECONDS: Final = 1.0
_ITEM_BYTES: Final = 400
"""Of an item's objects apart from its value and features (measured)."""
_FLUSH_SECONDS: Final = 30.0


class PublisherStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, and what waits now."""

    published: int
    """Records the log accepted."""
    dropped: int
    """Records lost: no room in the queue, refused for good, or left over at close."""
    dropped_bytes: int
    queue_depth: int
    queue_bytes: int
    errors: int
    """Failed attempts at the log or the store, and features that could not be used."""
    features: WriterStatistics


class Publisher:
    """Sends messages and traces to the log and the tensor store in the background.

    Args:
        transport_factory: Opens the log; called on the publisher's thread, again and again while it fails.
        store: Where features go.
        queue_bytes: Most bytes to keep waiting, features counted in full.
        sampler: Adapts to how full the queue is and pays for every trace; None: everything is taken.
        object_bytes: Features of one tenant go into one object until it is this large.
        linger: Seconds that features wait for others to share an object with.
        first_wait: Seconds between the first two attempts at a log or store that is away.
        most_wait: Seconds between attempts in a long outage.
        store_patience: Seconds that traces wait for a store that is away.
    """

    def __init__(
        self,
        transport_factory: Callable[[], Transport],
        store: TensorStore,
        queue_bytes: int,
        *,
        sampler: Sampler | None = None,
        object_bytes: int = 16 << 20,
        linger: float = 0.0,
        first_wait: float = 0.05,
        most_wait: float = 2.0,
        store_patience: float = 30.0,
    ) -> None:
        self._open: Final = transport_factory
        self._queue_bytes: Final = queue_bytes
        self._sampler: Final = sampler or Sampler(float("inf"))
        self._log_backoff: Final = Backoff(first_wait, most_wait)
        self._store_backoff: Final = Backoff(first_wait, most_wait)
        self._writer: Final = FeatureWriter(store, object_bytes, self._store_backoff, store_patience)
        self._backlog: Final = Backlog(
            queue_bytes, batch_bytes=min(2 * object_bytes, queue_bytes // 4), linger=linger
        )
        self._closing: Final = threading.Event()
        self._deadline = float("inf")
        self._transport: Transport | None = None
        self._published = 0
        self._errors = 0
        self._thread: Final = threading.Thread(target=self._run, name="trace-publisher", daemon=True)
        self._thread.start()

    def publish(self, topic: str, key: str, message: contracts.Message) -> None:
        """Queue a message; it is encoded before this returns, so it may change afterwards."""
        value = self._encoded(topic, key, message)
        if value is not None:
            self._backlog.add(Item(topic, key, len(value) + _ITEM_BYTES, value))

    def publish_trace(
        self,
        record: contracts.TraceRecord,
        tensors: TensorSource | None = None,
        meta: FeatureMeta | None = None,
    ) -> None:
        """Queue a trace, its features with it where `tensors` and `meta` are given and the budget allows.

        Args:
            record: The trace, its `features` still None.
            tensors: Its features, or a function of no arguments that gives them. The function is called on
                the publisher's thread, so it may wait for a copy from the device and convert.
            meta: What the features are.
        """
        topic = contracts.TOPIC_TRACE_RECORDED
        value = self._encoded(topic, record.tenant, record)
        if value is None:
            return
        size = len(value) + _ITEM_BYTES
        item = Item(topic, record.tenant, size, value, record.trace_id, record.created_at)
        feature_bytes = meta.bytes if tensors is not None and meta is not None else 0
        if self._sampler.spend(size, feature_bytes) and feature_bytes:
            item.tensors, item.meta = tensors, meta
            item.size += feature_bytes
        self._backlog.add(item)

    def drop_tenant(self, tenant: str) -> int:
        """Drop the traces of a tenant that wait, those that wait for a log or store that is away included.

        Returns:
            Their number; one that is being appended right now may still arrive, and counts as published.
        """
        return self._backlog.drop_tenant(tenant)

    def statistics(self) -> PublisherStatistics:
        """Counters since the start and the state of the queue."""
        dropped, dropped_bytes, depth, waiting = self._backlog.statistics()
        return PublisherStatistics(
            self._published,
            dropped,
            dropped_bytes,
            depth,
            waiting,
            self._errors + self._writer.errors,
            self._writer.statistics(),
        )

    def sampling(self) -> SamplingStatistics:
        """Sampling rates in force and what they left out."""
        return self._sampler.statistics()

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued is in the log; False if `timeout` seconds were not enough."""
        return self._backlog.wait_empty(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued for at most `timeout` seconds; what is left then is dropped and counted."""
        self._deadline = time.monotonic() + timeout
        self._writer.hurry()
        self._closing.set()
        self._backlog.close()
        self._thread.join(timeout + 0.5)
        self._backlog.clear()

    # -- the publisher's thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while time.monotonic() < self._deadline:
            self._adapt()
            away = self._writer.waiting_seconds
            items = self._backlog.take(_BATCH, 0 if away else _BATCH, away or _IDLE_SECONDS)
            if items:
                self._handle(items)
            elif self._closing.is_set():
                if self._backlog.wait_empty(0):
                    break
                self._pause(self._store_backoff)
        if self._transport is not None:
            with contextlib.suppress(TransportError):
                self._transport.close()

    def _adapt(self) -> None:
        dropped, _, _, waiting = self._backlog.statistics()
        self._sampler.adapt(waiting / self._queue_bytes, dropped)

    def _handle(self, items: list[Item]) -> None:
        traces = [item for item in items if item.trace_id]
        try:
            self._writer.write(traces)
        except StoreUnavailableError:
            self._backlog.put_back(traces)
            items = [item for item in items if not item.trace_id]
        if items:
            self._send([(item, OutgoingRecord(item.topic, item.key, _value(item))) for item in items])
        if traces and items and items[-1].trace_id:
            self._writer.forget()
        self._backlog.done()

    def _encoded(self, topic: str, key: str, message: contracts.Message) -> bytes | None:
        try:
            # The encoder's own bytes keep room for half as much again: a copy takes what it counts for.
            return memoryview(contracts.encode(message)).tobytes()
        except Exception:  # noqa: BLE001 - whatever is wrong with a message must not reach the engine
            _log.exception("message dropped: it cannot be encoded", topic=topic)
            self._backlog.drop(Item(topic, key, 0, b""))
            return None

    def _send(self, batch: list[tuple[Item, OutgoingRecord]]) -> None:
        """Append a batch, however often that takes until the publisher closes."""
        while time.monotonic() < self._deadline:
            try:
                if self._transport is None:
                    self._transport = self._open()
                batch = self._without_revoked(batch)
                self._writer.refresh()
                self._transport.send_many([record for _, record in batch])
                self._transport.flush(_FLUSH_SECONDS)
            except UnknownTopicError as error:
                batch = self._without_topic(batch, error)
                if not batch:
                    return
            except Exception as error:  # noqa: BLE001 - the engine's traces must outlive any fault of the log
                self._note_outage(error)
                self._pause(self._log_backoff)
            else:
                self._published += len(batch)
                if self._log_backoff.succeeded():
                    _log.info("log is back")
                return
            self._adapt()
        for item, _ in batch:
            self._backlog.drop(item)

    def _without_revoked(self, batch: list[tuple[Item, OutgoingRecord]]) -> list[tuple[Item, OutgoingRecord]]:
        for item, _ in batch:
            if item.revoked:
                self._backlog.drop(item)
        return [(item, record) for item, record in batch if not item.revoked]

    def _without_topic(
        self, batch: list[tuple[Item, OutgoingRecord]], error: UnknownTopicError
    ) -> list[tuple[Item, OutgoingRecord]]:
        self._errors += 1
        _log.error("records dropped", error=str(error))
        for item, _ in batch:
            if item.topic == error.topic:
                self._backlog.drop(item)
        return [(item, record) for item, record in batch if item.topic != error.topic]

    def _note_outage(self, error: Exception) -> None:
        self._errors += 1
        if self._log_backoff.failures == 0:
            _log.warning(
                "log is away: records wait, the oldest are dropped when the queue is full", error=str(error)
            )
        self._log_backoff.failed()

    def _pause(self, backoff: Backoff) -> None:
        """Wait for the next attempt, but not past the deadline of a close."""
        while (wait := min(backoff.waiting_seconds, self._deadline - time.monotonic())) > 0:
            if self._closing.is_set():
                time.sleep(min(wait, 0.02))
            else:
                self._closing.wait(wait)


def _value(item: Item) -> bytes:
    if item.reference is None:
        return item.value
    record = contracts.decode(item.value, contracts.TraceRecord)
    return contracts.encode(msgspec.structs.replace(record, features=item.reference))
