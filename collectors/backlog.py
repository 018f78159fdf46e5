"""The publisher's queue: bounded by bytes, drops the oldest, never makes the producer wait."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from adaptive.contracts import TraceRecord
    from collectors.features import FeatureMeta, TensorSource


@dataclass(slots=True)
class Item:
    """A record waiting to be published: bytes, or a trace still to be encoded."""

    topic: str
    key: str
    size: int
    """Bytes it counts for in the queue."""
    value: bytes = b""
    record: TraceRecord | None = None
    tensors: TensorSource | None = None
    meta: FeatureMeta | None = None


class Backlog:
    """Two lanes in order of arrival: items ready to send, and traces, whose features may have to wait.

    Where there is no room the oldest traces go first, then the oldest of the others: telemetry and the like
    are small and needed most when something is wrong. Items taken count until `done`, but are not dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._changed: Final = threading.Condition()
        self._ready: Final[deque[Item]] = deque()
        self._traces: Final[deque[Item]] = deque()
        self._bytes = 0
        self._taken: list[Item] = []
        self._closed = False
        self._dropped = 0
        self._dropped_bytes = 0

    def add(self, item: Item) -> None:
        """Append an item, dropping the oldest ones for it if need be, or itself where it can never fit."""
        with self._changed:
            if item.size > self._limit or self._closed:
                self._count_dropped(item)
                return
            (self._ready if item.record is None else self._traces).append(item)
            self._bytes += item.size
            while self._bytes > self._limit and (self._traces or self._ready):
                oldest = (self._traces or self._ready).popleft()
                self._bytes -= oldest.size
                self._count_dropped(oldest)
            self._changed.notify_all()

    def take(self, count: int, traces: int, timeout: float) -> list[Item]:
        """Take the oldest items, waiting at most `timeout` seconds for one.

        Args:
            count: Most items ready to send.
            traces: Most traces.
            timeout: Seconds.
        """
        with self._changed:
            if not (self._ready or (traces and self._traces) or self._closed):
                self._changed.wait(timeout)
            self._taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
            self._taken += [self._traces.popleft() for _ in range(min(traces, len(self._traces)))]
            return list(self._taken)

    def put_back(self, items: list[Item]) -> None:
        """Return taken traces to the front, in order."""
        with self._changed:
            self._traces.extendleft(reversed(items))
            self._taken = self._taken[: len(self._taken) - len(items)]

    def drop(self, item: Item) -> None:
        """Count a taken item as lost."""
        with self._changed:
            self._count_dropped(item)

    def done(self) -> None:
        """Everything taken was sent or dropped."""
        with self._changed:
            self._bytes -= sum(item.size for item in self._taken)
            self._taken = []
            self._changed.notify_all()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until nothing is queued or taken; False when `timeout` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: self._depth() == 0, timeout)

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
            self._changed.notify_all()

    def statistics(self) -> tuple[int, int, int, int]:
        """Items dropped, their bytes, items queued or taken, their bytes."""
        with self._changed:
            return self._dropped, self._dropped_bytes, self._depth(), self._bytes

    def _depth(self) -> int:
        return len(self._ready) + len(self._traces) + len(self._taken)

    def _count_dropped(self, item: Item) -> None:
        self._dropped += 1
        self._dropped_bytes += item.size
