"""Rows of the embedded log: appending and fetching records, each value compressed where that pays."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Final

import msgspec
import zstandard

from collectors.transport import LogRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Sequence

    from collectors.sqlite.database import Database
    from collectors.transport import OutgoingRecord, Partition

_COMPRESS_FROM: Final = 512
_LEVEL: Final = 1
"""Traces shrink to a fifth to three quarters at any level; higher ones take longer for a few per cent."""
_OVERHEAD_BYTES: Final = 64
"""Of one row in the file, so that retention by bytes holds for many small records too."""


def partition_of(key: str, partitions: int) -> int:
    """Partition of a key; the same in every process and version, for it fixes the order per key."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


class _Codecs(threading.local):
    """Per thread, for they may not be shared; making one costs more than using it."""

    def __init__(self) -> None:
        self.compressor: Final = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor: Final = zstandard.ZstdDecompressor()


_codecs: Final = _Codecs()


class Records:
    """Append and fetch.

    Args:
        database: The log file.
        clock: Unix seconds.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self.database: Final = database
        self._clock: Final = clock

    def append(self, batch: Sequence[tuple[OutgoingRecord, int, bool]]) -> None:
        """Append records, each with its partition id and whether its topic is compacted: all or none."""
        rows = [_row(record, part, compacted) for record, part, compacted in batch]
        with self.database.write() as connection:
            now = self._clock()
            heads: dict[int, tuple[int, int]] = {}
            appended = []
            for part, key, compact_key, value, zstd, headers, size in rows:
                if part not in heads:
                    heads[part] = connection.execute(
                        "SELECT next_offset, bytes FROM part WHERE id = ?", (part,)
                    ).fetchone()
                offset, total = heads[part]
                appended.append((part, offset, now, size, key, compact_key, zstd, headers, value))
                heads[part] = offset + 1, total + size
            connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", appended)
            connection.executemany(
                "UPDATE part SET next_offset = ?, bytes = ? WHERE id = ?",
                [(offset, total, part) for part, (offset, total) in heads.items()],
            )

    def fetch(
        self, part: int, name: Partition, first: int, limit: int, last: int | None = None
    ) -> list[LogRecord]:
        """Return up to `limit` records of a partition from offset `first` on, at most to `last`."""
        return self.fetch_on(part, name, first, limit, last)[0]

    def fetch_on(
        self, part: int, name: Partition, first: int, limit: int, last: int | None = None
    ) -> tuple[list[LogRecord], int]:
        """The same, and the offset to go on from: the partition's end where there is nothing left."""
        with self.database.read() as connection:
            end = _bounds(connection, part)[1]
            rows = connection.execute(
                "SELECT offset, key, value, zstd, headers, timestamp FROM record "
                "WHERE part_id = ? AND offset >= ? AND offset <= ? ORDER BY offset LIMIT ?",
                (part, first, (1 << 62) if last is None else last, limit),
            ).fetchall()
        topic, partition = name
        decompress = _codecs.decompressor.decompress
        records = [
            LogRecord(
                topic=topic,
                partition=partition,
                offset=offset,
                key=key,
                value=decompress(value) if zstd else value,
                headers=msgspec.msgpack.decode(headers, type=dict[str, bytes]) if headers else {},
                timestamp=timestamp,
            )
            for offset, key, value, zstd, headers, timestamp in rows
        ]
        return records, max(first, end) if len(rows) < limit else rows[-1][0] + 1

    def ends(self, parts: Collection[int]) -> dict[int, int]:
        """Next offset to be given, per partition id."""
        with self.database.read() as connection:
            return {part: _bounds(connection, part)[1] for part in parts}

    def bounds(self, part: int) -> tuple[int, int]:
        """First offset still kept and next offset to be given."""
        with self.database.read() as connection:
            return _bounds(connection, part)


def _bounds(connection: sqlite3.Connection, part: int) -> tuple[int, int]:
    bounds: tuple[int, int] = connection.execute(
        "SELECT first_offset, next_offset FROM part WHERE id = ?", (part,)
    ).fetchone()
    return bounds


def _row(
    record: OutgoingRecord, part: int, compacted: bool
) -> tuple[int, str, str | None, bytes | None, bool, bytes | None, int]:
    value, zstd = record.value, False
    if value is not None and len(value) >= _COMPRESS_FROM:
        packed = _codecs.compressor.compress(value)
        if len(packed) < len(value):
            value, zstd = packed, True
    headers = msgspec.msgpack.encode(record.headers) if record.headers else None
    size = len(record.key) + len(value or b"") + len(headers or b"") + _OVERHEAD_BYTES
    return part, record.key, record.key if compacted else None, value, zstd, headers, size
