"""Publishing from the engine's process: never blocks, never raises, loses the oldest first.

The caller's thread only appends to a bounded queue. One daemon thread opens the log, writes features to the
store and then the record that refers to them, so that no record points at features that are not there yet.
Messages without features do not wait for a store that is away; traces keep their order.
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
from collectors.features import store_features
from collectors.store import StoreUnavailableError
from collectors.transport import OutgoingRecord, TransportError, UnknownTopicError

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.features import FeatureMeta, TensorSource
    from collectors.store import TensorStore
    from collectors.transport import Transport

_log = structlog.get_logger(__name__)

_BATCH_READY: Final = 256
_BATCH_TRACES: Final = 16
"""Few, for the features of all are written before the batch is sent."""
_IDLE_SECONDS: Final = 1.0
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


class Publisher:
    """Sends messages and traces to the log and the tensor store in the background.

    Args:
        transport_factory: Opens the log; called on the publisher's thread, again and again while it fails.
        store: Where features go.
        queue_bytes: Most bytes to keep waiting, features counted in full.
        first_wait: Seconds between the first two attempts at a log or store that is away.
        most_wait: Seconds between attempts in a long outage.
    """

    def __init__(
        self,
        transport_factory: Callable[[], Transport],
        store: TensorStore,
        queue_bytes: int,
        *,
        first_wait: float = 0.05,
        most_wait: float = 2.0,
    ) -> None:
        self._open: Final = transport_factory
        self._store: Final = store
        self._log_backoff: Final = Backoff(first_wait, most_wait)
        self._store_backoff: Final = Backoff(first_wait, most_wait)
        self._backlog: Final = Backlog(queue_bytes)
        self._closing: Final = threading.Event()
        self._deadline = float("inf")
        self._transport: Transport | None = None
        self._published = 0
        self._errors = 0
        self._thread: Final = threading.Thread(target=self._run, name="trace-publisher", daemon=True)
        self._thread.start()

    def publish(self, topic: str, key: str, message: contracts.Message) -> None:
        """Queue a message; it is encoded before this returns, so it may change afterwards."""
        try:
            value = contracts.encode(message)
        except Exception:  # noqa: BLE001 - whatever is wrong with a message must not reach the engine
            _log.exception("message dropped: it cannot be encoded", topic=topic)
            self._backlog.drop(Item(topic, key, 0))
            return
        self._backlog.add(Item(topic, key, len(value), value=value))

    def publish_trace(
        self,
        record: contracts.TraceRecord,
        tensors: TensorSource | None = None,
        meta: FeatureMeta | None = None,
    ) -> None:
        """Queue a trace, its features with it where `tensors` and `meta` are given.

        Args:
            record: The trace, its `features` still None.
            tensors: Its features, or a function of no arguments that gives them. The function is called on
                the publisher's thread, so it may wait for a copy from the device and convert.
            meta: What the features are.
        """
        size = 256 + 6 * (len(record.prompt_ids) + len(record.output_ids)) + 96 * len(record.steps)
        item = Item(contracts.TOPIC_TRACE_RECORDED, record.tenant, size, record=record)
        if tensors is not None and meta is not None:
            item.tensors, item.meta = tensors, meta
            item.size += meta.bytes
        self._backlog.add(item)

    def statistics(self) -> PublisherStatistics:
        """Counters since the start and the state of the queue."""
        dropped, dropped_bytes, depth, waiting = self._backlog.statistics()
        return PublisherStatistics(self._published, dropped, dropped_bytes, depth, waiting, self._errors)

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued is in the log; False if `timeout` seconds were not enough."""
        return self._backlog.wait_empty(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued for at most `timeout` seconds; what is left then is dropped and counted."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._backlog.close()
        self._thread.join(timeout + 0.5)
        self._backlog.clear()

    def _run(self) -> None:
        while time.monotonic() < self._deadline:
            away = self._store_backoff.waiting_seconds
            traces = 0 if away else _BATCH_TRACES
            items = self._backlog.take(_BATCH_READY, traces, away or _IDLE_SECONDS)
            if items:
                self._handle(items)
            elif self._closing.is_set():
                if self._backlog.wait_empty(0):
                    break
                self._pause(self._store_backoff)
        if self._transport is not None:
            with contextlib.suppress(TransportError):
                self._transport.close()

    def _handle(self, items: list[Item]) -> None:
        batch: list[tuple[Item, OutgoingRecord]] = []
        for index, item in enumerate(items):
            try:
                batch.append((item, OutgoingRecord(item.topic, item.key, self._encode(item))))
            except StoreUnavailableError as error:
                self._note_outage("tensor store", self._store_backoff, error)
                self._backlog.put_back(items[index:])
                break
            except Exception:  # noqa: BLE001 - one bad record must not end publishing
                self._errors += 1
                _log.exception("record dropped: it cannot be encoded", topic=item.topic)
                self._backlog.drop(item)
        if batch:
            self._send(batch)
        self._backlog.done()

    def _encode(self, item: Item) -> bytes:
        if item.record is None:
            return item.value
        record = item.record
        if item.tensors is not None and item.meta is not None:
            try:
                if callable(item.tensors):
                    item.tensors = item.tensors()
                reference = store_features(self._store, record, item.tensors, item.meta)
                record = msgspec.structs.replace(record, features=reference)
            except StoreUnavailableError:
                raise
            except Exception:  # noqa: BLE001 - `tensors` is the caller's code
                # The trace is of use without its features: learners can recompute them.
                self._errors += 1
                _log.exception("trace published without its features", trace_id=record.trace_id)
            else:
                if self._store_backoff.succeeded():
                    _log.info("tensor store is back")
        return contracts.encode(record)

    def _send(self, batch: list[tuple[Item, OutgoingRecord]]) -> None:
        """Append a batch, however often that takes until the publisher closes."""
        while time.monotonic() < self._deadline:
            try:
                if self._transport is None:
                    self._transport = self._open()
                self._transport.send_many([record for _, record in batch])
                self._transport.flush(_FLUSH_SECONDS)
            except UnknownTopicError as error:
                batch = self._without_topic(batch, error)
                if not batch:
                    return
            except Exception as error:  # noqa: BLE001 - the engine's traces must outlive any fault of the log
                self._note_outage("log", self._log_backoff, error)
                self._pause(self._log_backoff)
            else:
                self._published += len(batch)
                if self._log_backoff.succeeded():
                    _log.info("log is back")
                return
        for item, _ in batch:
            self._backlog.drop(item)

    def _without_topic(
        self, batch: list[tuple[Item, OutgoingRecord]], error: UnknownTopicError
    ) -> list[tuple[Item, OutgoingRecord]]:
        self._errors += 1
        _log.error("records dropped", error=str(error))
        for item, _ in batch:
            if item.topic == error.topic:
                self._backlog.drop(item)
        return [(item, record) for item, record in batch if item.topic != error.topic]

    def _note_outage(self, what: str, backoff: Backoff, error: Exception) -> None:
        self._errors += 1
        if backoff.failures == 0:
            _log.warning(
                f"{what} is away: records wait, the oldest are dropped when the queue is full",
                error=str(error),
            )
        backoff.failed()

    def _pause(self, backoff: Backoff) -> None:
        """Wait for the next attempt, but not past the deadline of a close."""
        while (wait := min(backoff.waiting_seconds, self._deadline - time.monotonic())) > 0:
            if self._closing.is_set():
                time.sleep(min(wait, 0.02))
            else:
                self._closing.wait(wait)
