"""What the embedded log forgets: old records, and superseded ones of compacted topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    import sqlite3

    from collectors.sqlite.database import Database

_log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 60.0
_SLICE: Final = 1000
"""Rows deleted per transaction, so that appends of others wait milliseconds at most."""


def claim(database: Database, now: float) -> bool:
    """Whether housekeeping is due and this caller is the one process that does it now."""
    with database.read() as connection:
        if connection.execute("SELECT due_at FROM housekeeping").fetchone()[0] > now:
            return False
    with database.write() as connection:
        claimed = connection.execute(
            "UPDATE housekeeping SET due_at = ? WHERE due_at <= ?", (now + INTERVAL_SECONDS, now)
        )
        return claimed.rowcount == 1


def enforce(database: Database, now: float) -> int:
    """Delete everything that may go; returns the number of records deleted."""
    with database.read() as connection:
        parts = connection.execute(
            "SELECT part.id, compacted, retention_seconds, retention_bytes FROM part "
            "JOIN topic ON topic.id = part.topic_id"
        ).fetchall()
    deleted = 0
    for part, compacted, seconds, limit in parts:
        while count := _slice(database, part, bool(compacted), now - seconds, limit):
            deleted += count
    if deleted:
        with database.write() as connection:
            connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()
        _log.info("log records deleted by retention", records=deleted)
    return deleted


def _slice(database: Database, part: int, compacted: bool, before: float, limit: int) -> int:
    with database.write() as connection:
        if compacted:
            rows = _superseded(connection, part, before)
        else:
            rows = _expired(connection, part, before, limit)
        connection.executemany(
            "DELETE FROM record WHERE part_id = ? AND offset = ?", [(part, offset) for offset, _ in rows]
        )
        connection.execute(
            "UPDATE part SET bytes = bytes - ? WHERE id = ?", (sum(size for _, size in rows), part)
        )
        if rows and not compacted:
            # A compacted topic has gaps everywhere; only elsewhere does a start say what a replay can reach.
            connection.execute("UPDATE part SET first_offset = ? WHERE id = ?", (rows[-1][0] + 1, part))
        return len(rows)


def _superseded(connection: sqlite3.Connection, part: int, before: float) -> list[tuple[int, int]]:
    """Offset and size of old records of which a later one of the same key exists, and of old tombstones."""
    return connection.execute(
        "SELECT offset, bytes FROM record AS this WHERE part_id = ? AND timestamp < ? AND (value IS NULL OR "
        "EXISTS (SELECT 1 FROM record AS later WHERE later.part_id = this.part_id "
        "AND later.compact_key = this.key AND later.offset > this.offset)) ORDER BY offset LIMIT ?",
        (part, before, _SLICE),
    ).fetchall()


def _expired(connection: sqlite3.Connection, part: int, before: float, limit: int) -> list[tuple[int, int]]:
    """Offset and size of the oldest records while they are too old or the partition too large."""
    total = connection.execute("SELECT bytes FROM part WHERE id = ?", (part,)).fetchone()[0]
    expired = []
    for offset, size, timestamp in connection.execute(
        "SELECT offset, bytes, timestamp FROM record WHERE part_id = ? ORDER BY offset LIMIT ?",
        (part, _SLICE),
    ).fetchall():
        if timestamp >= before and total <= limit:
            break
        expired.append((offset, size))
        total -= size
    return expired
