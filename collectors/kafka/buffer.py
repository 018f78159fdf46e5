"""Records that were fetched and not handed out yet, per partition, handed out fairly."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collectors.transport import LogRecord, Partition


class Buffer:
    """First in, first out per partition; every partition gets an equal share of each batch."""

    def __init__(self) -> None:
        self._queues: Final[dict[Partition, deque[LogRecord]]] = {}
        self._turn = 0
        self.size = 0
        """Bytes of the records here, roughly."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, partition: Partition, records: Sequence[LogRecord]) -> None:
        """Append records of a partition, in order."""
        if records:
            self._queues.setdefault(partition, deque()).extend(records)
            self.size += sum(map(_size, records))

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget everything of some partitions."""
        for partition in partitions:
            self.size -= sum(map(_size, self._queues.pop(partition, ())))

    def first(self, partition: Partition) -> int | None:
        """Offset of a partition's next record; None where none is here."""
        queue = self._queues.get(partition)
        return queue[0].offset if queue else None

    def take(self, count: int) -> list[LogRecord]:
        """Hand out up to `count` records; what one partition does not need of its share, others get."""
        waiting = sorted(self._queues)
        if not waiting:
            return []
        self._turn = (self._turn + 1) % len(waiting)
        waiting = waiting[self._turn :] + waiting[: self._turn]
        batch: list[LogRecord] = []
        # The shortest first: what they leave of their share is known when the longer ones' turn comes.
        for index, partition in enumerate(sorted(waiting, key=lambda name: len(self._queues[name]))):
            share = -(-(count - len(batch)) // (len(waiting) - index))
            queue = self._queues[partition]
            batch += [queue.popleft() for _ in range(min(share, len(queue)))]
            if not queue:
                del self._queues[partition]
        self.size -= sum(map(_size, batch))
        return batch


def _size(record: LogRecord) -> int:
    """Bytes of a record: its value, and about what the objects around it take."""
    return 500 + len(record.value or b"")
