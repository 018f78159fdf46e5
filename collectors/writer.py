"""The features of queued traces into the store, with patience for a store that is away or full."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from collectors.features import TraceFeatures, check_features, share_objects, store_features
from collectors.store import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectors.backlog import Item
    from collectors.backoff import Backoff
    from collectors.store import TensorStore

_log = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 1800.0
"""Features whose records could not be sent for this long are written again: what no record refers to may be
collected some time after it was written (`collectors.orphans`)."""


class WriterStatistics(msgspec.Struct, frozen=True):
    """Counters since the start."""

    stored: int
    """Traces whose features are in the store."""
    lost: int
    """Traces that went without: their features could not be used, or the store was away too long."""
    objects: int
    bytes: int
    """Of those objects."""


class FeatureWriter:
    """Writes what belongs together as one object. Used by the publisher's thread.

    Args:
        store: Where objects go.
        object_bytes: Size from which an object takes no more traces.
        backoff: Waits between attempts at a store that is away.
        patience: Seconds of an outage after which traces go without their features.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: TensorStore,
        object_bytes: int,
        backoff: Backoff,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store: Final = store
        self._object_bytes: Final = object_bytes
        self._backoff: Final = backoff
        self._patience = patience
        self._clock: Final = clock
        self._away_since: float | None = None
        self._written: list[tuple[float, list[TraceFeatures]]] = []
        self._stored = 0
        self._lost = 0
        self._objects = 0
        self._bytes = 0
        self.errors = 0
        """Failed attempts at the store, and features that could not be used."""

    @property
    def waiting_seconds(self) -> float:
        """How long traces must wait before the next attempt at the store; 0: they may come now."""
        return 0.0 if self._given_up else self._backoff.waiting_seconds

    def hurry(self) -> None:
        """Wait for a store that is away no longer: the process ends."""
        self._patience = 0.0

    def write(self, items: Sequence[Item]) -> None:
        """Store the features of traces and note each one's reference in its item.

        Raises:
            StoreUnavailableError: the store is away and the traces are to wait for it; what has a reference
                already is not written again by the next attempt.
        """
        pending = [item for item in items if item.reference is None and item.meta and not item.revoked]
        found = [(item, features) for item in pending if (features := self._convert(item)) is not None]
        for indices in share_objects([features for _, features in found], self._object_bytes):
            members = [found[index] for index in indices]
            self._store_object([item for item, _ in members], [features for _, features in members])

    def refresh(self) -> None:
        """Write the objects of records that still wait for the log again where that is due.

        Raises:
            StoreError: that failed, so the records must go on waiting.
        """
        now = self._clock()
        for index, (written_at, features) in enumerate(self._written):
            if now - written_at > REFRESH_SECONDS:
                store_features(self._store, features)
                self._written[index] = now, features

    def forget(self) -> None:
        """The records of everything written are in the log."""
        self._written.clear()

    def statistics(self) -> WriterStatistics:
        """Counters."""
        return WriterStatistics(self._stored, self._lost, self._objects, self._bytes)

    @property
    def _given_up(self) -> bool:
        return self._away_since is not None and self._clock() - self._away_since >= self._patience

    def _convert(self, item: Item) -> TraceFeatures | None:
        assert item.meta is not None
        try:
            if callable(item.tensors):
                item.tensors = item.tensors()
            assert item.tensors is not None
            check_features(item.trace_id, item.tensors, item.meta)
        except Exception:  # noqa: BLE001 - `tensors` is the caller's code
            # The trace is of use without its features: learners can recompute them.
            self.errors += 1
            _log.exception("trace published without its features", trace_id=item.trace_id)
            self._lose([item])
            return None
        return TraceFeatures(item.key, item.trace_id, item.created_at, item.tensors, item.meta)

    def _store_object(self, items: list[Item], features: list[TraceFeatures]) -> None:
        if self._given_up and self._backoff.waiting_seconds:
            self._lose(items)
            return
        try:
            references = store_features(self._store, features)
        except StoreUnavailableError as error:
            self._note_outage(error)
            if not self._given_up:
                raise
            self._lose(items)
            return
        except Exception:  # noqa: BLE001 - a tenant id that is no name, say: the traces are of use as they are
            self.errors += 1
            _log.exception("traces published without their features", traces=len(items))
            self._lose(items)
            return
        if self._backoff.succeeded():
            _log.info("tensor store is back")
        self._away_since = None
        for item, reference in zip(items, references, strict=True):
            item.reference = reference
        self._written.append((self._clock(), features))
        self._stored += len(items)
        self._objects += 1
        self._bytes += references[0].bytes

    def _note_outage(self, error: Exception) -> None:
        self.errors += 1
        if self._away_since is None:
            self._away_since = self._clock()
            _log.warning(
                "tensor store is away: traces wait for it, then go without their features",
                patience_seconds=self._patience,
                error=str(error),
            )
        self._backoff.failed()

    def _lose(self, items: list[Item]) -> None:
        self._lost += len(items)
        for item in items:
            item.tensors = item.meta = None
