"""Taking an erased tenant's records out of the embedded log, its file's free pages included.

Every connection deletes securely (`Database`), which overwrites what it frees. At the end the file gives back
its free pages, which an older version may have left unwiped, and the write-ahead log is emptied.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog
import zstandard

from adaptive import contracts
from collectors.transport import TransportUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection

    from adaptive.contracts import Watermark
    from collectors.sqlite.database import Database

_log = structlog.get_logger(__name__)

_SLICE: Final = 500
"""Rows deleted per transaction, so that appends of others wait milliseconds at most."""
_SCAN: Final = 5000
_KEPT: Final = frozenset({contracts.TOPIC_TENANT_ERASED, contracts.TOPIC_ERASURE_ACKNOWLEDGED})
"""What an erasure leaves: the instruction to leave records out, and who did what. No content."""


def erase(database: Database, mark: bytes, tenant: str, watermarks: Collection[Watermark]) -> dict[str, int]:
    """Delete what lies below watermarks: records of a tenant by key, and others that name it.

    Tombstones stay, for they tell readers that were away; compaction removes them.

    Args:
        database: The log file.
        mark: How a message that names the tenant contains it.
        tenant: Key of its records.
        watermarks: Where to look.

    Returns:
        Records deleted per topic, without the topics of which there were none.

    Raises:
        TransportUnavailableError: the file is locked, or its write-ahead log is in use: do it again.
    """
    deleted: dict[str, int] = {}
    for watermark in watermarks:
        if watermark.topic in _KEPT:
            continue
        count = _erase_partition(database, mark, tenant, watermark)
        if count:
            deleted[watermark.topic] = deleted.get(watermark.topic, 0) + count
    _give_back_free_pages(database)
    _empty_write_ahead_log(database)
    if deleted:
        _log.info("records of an erased tenant deleted", tenant=tenant, records=sum(deleted.values()))
    return deleted


def forget(database: Database, topic: str, partition: int, offsets: Collection[int]) -> int:
    """Delete single records of a partition; returns how many there were. Errors as `erase`."""
    with database.read() as connection:
        (part,) = connection.execute(
            "SELECT part.id FROM part JOIN topic ON topic.id = part.topic_id WHERE name = ? AND number = ?",
            (topic, partition),
        ).fetchone()
        sizes = {
            offset: connection.execute(
                "SELECT bytes FROM record WHERE part_id = ? AND offset = ?", (part, offset)
            ).fetchone()
            for offset in offsets
        }
    rows = [(offset, size[0]) for offset, size in sizes.items() if size is not None]
    for start in range(0, len(rows), _SLICE):
        _delete(database, part, rows[start : start + _SLICE])
    _give_back_free_pages(database)
    _empty_write_ahead_log(database)
    return len(rows)


def expire(database: Database, tenant: str, before: float, most_bytes: int | None) -> int:
    """Delete a tenant's records that are older than `before`, or more than `most_bytes` from the newest."""
    with database.read() as connection:
        rows = connection.execute(
            "SELECT part_id, offset, bytes, timestamp FROM record WHERE key = ? AND part_id IN "
            "(SELECT part.id FROM part JOIN topic ON topic.id = part.topic_id WHERE NOT compacted) "
            "ORDER BY timestamp DESC, offset DESC",
            (tenant,),
        ).fetchall()
    gone: dict[int, list[tuple[int, int]]] = {}
    kept = 0
    for part, offset, size, timestamp in rows:
        kept += size
        if timestamp < before or (most_bytes is not None and kept > most_bytes):
            gone.setdefault(part, []).append((offset, size))
    for part, found in gone.items():
        for start in range(0, len(found), _SLICE):
            _delete(database, part, found[start : start + _SLICE])
    return sum(map(len, gone.values()))


def _erase_partition(database: Database, mark: bytes, tenant: str, watermark: Watermark) -> int:
    with database.read() as connection:
        row = connection.execute(
            "SELECT part.id FROM part JOIN topic ON topic.id = part.topic_id WHERE name = ? AND number = ?",
            (watermark.topic, watermark.partition),
        ).fetchone()
    if row is None:
        return 0
    part = row[0]
    # Only these name tenants without being keyed by one; to unpack all others would take minutes.
    by_value = watermark.topic.startswith(contracts.TOPIC_ENGINE_TELEMETRY)
    found: list[tuple[int, int]] = []
    first = 0
    while True:
        with database.read() as connection:
            rows = connection.execute(
                "SELECT offset, bytes, key, value IS NULL, zstd, CASE WHEN ? THEN value END FROM record "
                "WHERE part_id = ? AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?",
                (by_value, part, first, watermark.offset, _SCAN),
            ).fetchall()
        if not rows:
            break
        first = rows[-1][0] + 1
        found += [
            (offset, size)
            for offset, size, key, tombstone, zstd, value in rows
            if not tombstone and (key == tenant or (value is not None and mark in _unpacked(value, zstd)))
        ]
    for start in range(0, len(found), _SLICE):
        _delete(database, part, found[start : start + _SLICE])
    return len(found)


def _delete(database: Database, part: int, rows: list[tuple[int, int]]) -> None:
    with database.write() as connection:
        freed = 0
        for offset, size in rows:
            # Retention may have been here meanwhile.
            freed += (
                size
                * connection.execute(
                    "DELETE FROM record WHERE part_id = ? AND offset = ?", (part, offset)
                ).rowcount
            )
        connection.execute("UPDATE part SET bytes = bytes - ? WHERE id = ?", (freed, part))


def _unpacked(value: bytes, zstd: bool) -> bytes:
    return zstandard.ZstdDecompressor().decompress(value) if zstd else value


def _give_back_free_pages(database: Database) -> None:
    before = -1
    while True:
        with database.write() as connection:
            left = connection.execute("PRAGMA freelist_count").fetchone()[0]
            if left in (0, before):
                return
            before = left
            connection.execute(f"PRAGMA incremental_vacuum({_SCAN})").fetchall()


def _empty_write_ahead_log(database: Database) -> None:
    deadline = time.monotonic() + database.busy_seconds
    while True:
        if database.checkpoint():
            return
        if time.monotonic() > deadline:
            raise TransportUnavailableError(
                f"the write-ahead log of {database.path} is in use by a reader for over "
                f"{database.busy_seconds:g} s and may still hold what was deleted: it is tried again"
            )
        time.sleep(0.05)
