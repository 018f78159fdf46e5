"""The publisher's queue: bounded by bytes, drops the oldest, never makes the producer wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from adaptive.contracts import FeatureReference
    from collectors.features import FeatureMeta, TensorSource


@dataclass(slots=True)
class Item:
    """A record waiting to be published, encoded: a few bytes instead of hundreds of objects."""

    topic: str
    key: str
    size: int
    """Bytes it counts for in the queue, features included."""
    value: bytes
    trace_id: str = ""
    """Of a trace; empty for other messages."""
    created_at: float = 0.0
    tensors: TensorSource | None = None
    meta: FeatureMeta | None = None
    reference: FeatureReference | None = None
    """Where its features lie, once they are stored."""
    queued_at: float = 0.0
    """time.monotonic()."""
    revoked: bool = False
    """To be dropped by whoever took it, if it has not been sent."""


class Backlog:
    """Two lanes in order of arrival: items ready to send, and traces, whose features may have to wait.

    Where there is no room the oldest traces go first, then the oldest of the others: telemetry and the like
    are small and needed most when something is wrong. Items taken count until `done`, but are not dropped.

    Traces with features are handed out in batches, so that many share an object: not before their features
    are `batch_bytes` together, or the oldest trace has waited for `linger` seconds.
    """

    def __init__(self, limit: int, *, batch_bytes: int = 0, linger: float = 0.0) -> None:
        self._limit: Final = limit
        self._batch_bytes: Final = batch_bytes
        self._linger: Final = linger
        self._changed: Final = threading.Condition()
        self._ready: Final[deque[Item]] = deque()
        self._traces: Final[deque[Item]] = deque()
        self._bytes = 0
        self._feature_bytes = 0
        self._taken: list[Item] = []
        self._flushing = 0
        self._closed = False
        self._dropped = 0
        self._dropped_bytes = 0

    def add(self, item: Item) -> None:
        """Append an item, dropping the oldest ones for it if need be, or itself where it can never fit."""
        item.queued_at = time.monotonic()
        with self._changed:
            if item.size > self._limit or self._closed:
                self._count_dropped(item)
                return
            (self._traces if item.trace_id else self._ready).append(item)
            self._bytes += item.size
            self._feature_bytes += _features(item)
            while self._bytes > self._limit and (self._traces or self._ready):
                oldest = (self._traces or self._ready).popleft()
                self._bytes -= oldest.size
                self._feature_bytes -= _features(oldest)
                self._count_dropped(oldest)
            self._changed.notify_all()

    def take(self, count: int, traces: int, timeout: float) -> list[Item]:
        """Take the oldest items, waiting at most `timeout` seconds for one.

        Args:
            count: Most items ready to send.
            traces: Most traces.
            timeout: Seconds.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (self._ready or self._closed or (traces and self._due())):
                wait = deadline - time.monotonic()
                if traces and self._traces:
                    wait = min(wait, self._traces[0].queued_at + self._linger - time.monotonic())
                if wait <= 0:
                    break
                self._changed.wait(wait)
            self._taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
            if traces and self._due():
                self._taken += self._take_traces(traces)
            return list(self._taken)

    def put_back(self, items: list[Item]) -> None:
        """Return taken traces to the front, in order."""
        with self._changed:
            self._traces.extendleft(reversed(items))
            self._feature_bytes += sum(_features(item) for item in items)
            self._taken = self._taken[: len(self._taken) - len(items)]

    def drop(self, item: Item) -> None:
        """Count a taken item as lost."""
        with self._changed:
            self._count_dropped(item)

    def drop_tenant(self, tenant: str) -> int:
        """Drop a tenant's traces, and revoke those that were taken; returns the number of both."""
        with self._changed:
            queued = list(self._traces)
            self._traces.clear()
            self._traces.extend(item for item in queued if item.key != tenant)
            gone = [item for item in queued if item.key == tenant]
            for item in gone:
                self._bytes -= item.size
                self._feature_bytes -= _features(item)
                self._count_dropped(item)
            taken = [item for item in self._taken if item.trace_id and item.key == tenant]
            for item in taken:
                item.revoked = True
            self._changed.notify_all()
            return len(gone) + len(taken)

    def done(self) -> None:
        """Everything taken was sent or dropped."""
        with self._changed:
            self._bytes -= sum(item.size for item in self._taken)
            self._taken = []
            self._changed.notify_all()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until nothing is queued or taken; False when `timeout` seconds were not enough.

        Meanwhile traces are handed out without waiting for others to share an object with.
        """
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: self._depth() == 0, timeout)
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Accept nothing more; from now on `take` does not wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Drop everything that is queued."""
        with self._changed:
            for item in (*self._traces, *self._ready):
                self._bytes -= item.size
                self._count_dropped(item)
            self._traces.clear()
            self._ready.clear()
            self._feature_bytes = 0
            self._changed.notify_all()

    def statistics(self) -> tuple[int, int, int, int]:
        """Items dropped, their bytes, items queued or taken, their bytes."""
        with self._changed:
            return self._dropped, self._dropped_bytes, self._depth(), self._bytes

    def _due(self) -> bool:
        """Whether traces may be handed out."""
        if not self._traces:
            return False
        return (
            self._feature_bytes == 0
            or self._feature_bytes >= self._batch_bytes
            or self._closed
            or self._flushing > 0
            or time.monotonic() >= self._traces[0].queued_at + self._linger
        )

    def _take_traces(self, most: int) -> list[Item]:
        taken: list[Item] = []
        features = 0
        # One batch of features is held twice for a moment, as tensors and as bytes: no more than that.
        while self._traces and len(taken) < most and (features == 0 or features < self._batch_bytes):
            item = self._traces.popleft()
            features += _features(item)
            taken.append(item)
        self._feature_bytes -= features
        return taken

    def _depth(self) -> int:
        return len(self._ready) + len(self._traces) + len(self._taken)

    def _count_dropped(self, item: Item) -> None:
        self._dropped += 1
        self._dropped_bytes += item.size


def _features(item: Item) -> int:
    return item.meta.bytes if item.meta is not None else 0
