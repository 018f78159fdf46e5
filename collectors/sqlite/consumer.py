"""Reading the embedded log: positions per partition, waiting, commits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from collectors.transport import PartitionNotAssignedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectors.sqlite.groups import Membership
    from collectors.sqlite.records import Records
    from collectors.transport import LogRecord, Partition

_log = structlog.get_logger(__name__)

_SLEEP_SECONDS: Final = 0.01
_SETTLE_SECONDS: Final = 0.25
"""How often a waiting member looks whether partitions moved."""


class SqliteConsumer:
    """A `Consumer`; without a membership it reads every partition from the start.

    Args:
        records: Access to the log's records.
        parts: Partition ids of the topics read, by topic and number.
        membership: Place in a group, or None.
        on_close: Called once when the consumer closes.
    """

    def __init__(
        self,
        records: Records,
        parts: Mapping[Partition, int],
        membership: Membership | None,
        on_close: Callable[[SqliteConsumer], None],
    ) -> None:
        self._records: Final = records
        self._parts: Final = dict(parts)
        self._names: Final = {part: name for name, part in self._parts.items()}
        self._membership: Final = membership
        self._on_close: Final = on_close
        self._positions: dict[int, int] = {}
        self._polled: dict[int, int] = {}
        self._settle_at = 0.0
        self._turn = 0
        if membership is None:
            self._positions = dict.fromkeys(self._names, 0)
        else:
            self._settle()

    def poll(self, timeout: float, max_records: int = 500) -> list[LogRecord]:
        """Return the next records; see `Consumer.poll`."""
        deadline = time.monotonic() + timeout
        while True:
            if self._membership is not None and time.monotonic() >= self._settle_at:
                self._settle()
            version = self._records.database.data_version()
            batch = self._fetch(max_records)
            if batch or time.monotonic() >= deadline:
                return batch
            self._wait(version, deadline)

    def commit(self, positions: Mapping[Partition, int] | None = None) -> None:
        """Store next offsets of the group, if there is one; see `Consumer.commit`."""
        if self._membership is None:
            return
        if positions is None:
            offsets = self._polled
        else:
            offsets = {self._part(*name): offset for name, offset in positions.items()}
        lost = self._membership.commit(offsets) if offsets else set()
        self._polled = {part: offset for part, offset in self._polled.items() if part not in offsets}
        if lost:
            _log.info("commit of moved partitions left out", partitions=[self._names[part] for part in lost])

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Set the next offset to poll; see `Consumer.seek`."""
        part = self._part(topic, partition)
        if part not in self._positions:
            raise PartitionNotAssignedError(
                f"partition {partition} of {topic!r} is not assigned to this consumer: another member of its "
                "group reads it; use a consumer without a group, or Transport.read"
            )
        self._positions[part] = offset
        if part in self._polled:
            self._polled[part] = offset

    def lag(self) -> dict[Partition, int]:
        """Offsets left to poll per assigned partition; see `Consumer.lag`."""
        ends = self._records.ends(self._positions)
        return {self._names[part]: max(0, ends[part] - at) for part, at in self._positions.items()}

    def close(self) -> None:
        """Leave the group; see `Consumer.close`."""
        self._positions = {}
        if self._membership is not None:
            self._membership.leave()
        self._on_close(self)

    def _part(self, topic: str, partition: int) -> int:
        try:
            return self._parts[topic, partition]
        except KeyError:
            raise PartitionNotAssignedError(
                f"this consumer does not read partition {partition} of {topic!r}: it was opened for "
                f"{', '.join(sorted({name for name, _ in self._parts}))}"
            ) from None

    def _settle(self) -> None:
        """Adopt the group's assignment; a partition that is new here starts at its committed offset."""
        assert self._membership is not None
        committed = self._membership.partitions()
        self._positions = {part: self._positions.get(part, offset) for part, offset in committed.items()}
        self._polled = {part: offset for part, offset in self._polled.items() if part in committed}
        self._settle_at = time.monotonic() + _SETTLE_SECONDS

    def _fetch(self, max_records: int) -> list[LogRecord]:
        """Take up to `max_records`, another partition first at every call so that none starves."""
        parts = sorted(self._positions)
        self._turn += 1
        batch: list[LogRecord] = []
        for index in range(len(parts)):
            part = parts[(index + self._turn) % len(parts)]
            room = max_records - len(batch)
            if room <= 0:
                break
            found, behind = self._records.fetch_on(part, self._names[part], self._positions[part], room)
            batch += found
            # Also over what was deleted at the end of the partition: else it would never be read up.
            if behind > self._positions[part]:
                self._positions[part] = self._polled[part] = behind
        return batch

    def _wait(self, version: int, deadline: float) -> None:
        wake_at = min(deadline, self._settle_at) if self._membership is not None else deadline
        while (now := time.monotonic()) < wake_at:
            time.sleep(min(_SLEEP_SECONDS, wake_at - now))
            if self._records.database.data_version() != version:
                return
