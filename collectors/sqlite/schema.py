"""Tables of the embedded log, and their creation by whichever process comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectors.transport import TransportError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from pathlib import Path

    from collectors.topics import TopicSpec

APPLICATION_ID: Final = 0x41445350
SCHEMA_VERSION: Final = 1

# `part` is one row per partition. Records are a rowid table because their blobs are larger than what SQLite
# advises for WITHOUT ROWID; blobs come last, so that retention need not walk them. Only records of compacted
# topics carry `compact_key`, so only they pay for its index.
_TABLES: Final = """
CREATE TABLE topic (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, compacted INTEGER NOT NULL,
    retention_seconds REAL NOT NULL, retention_bytes INTEGER NOT NULL
);
CREATE TABLE part (
    id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL REFERENCES topic (id), number INTEGER NOT NULL,
    next_offset INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
    first_offset INTEGER NOT NULL DEFAULT 0, UNIQUE (topic_id, number)
);
CREATE TABLE record (
    part_id INTEGER NOT NULL REFERENCES part (id), offset INTEGER NOT NULL, timestamp REAL NOT NULL,
    bytes INTEGER NOT NULL, key TEXT NOT NULL, compact_key TEXT, zstd INTEGER NOT NULL, headers BLOB,
    value BLOB,
    UNIQUE (part_id, offset)
);
CREATE INDEX record_by_key ON record (part_id, compact_key, offset) WHERE compact_key IS NOT NULL;
CREATE TABLE member (
    consumer_group TEXT NOT NULL, id TEXT NOT NULL, topics TEXT NOT NULL, expires_at REAL NOT NULL,
    PRIMARY KEY (consumer_group, id)
) WITHOUT ROWID;
CREATE TABLE lease (
    consumer_group TEXT NOT NULL, part_id INTEGER NOT NULL REFERENCES part (id), member TEXT NOT NULL,
    PRIMARY KEY (consumer_group, part_id)
) WITHOUT ROWID;
CREATE TABLE committed (
    consumer_group TEXT NOT NULL, part_id INTEGER NOT NULL REFERENCES part (id), next_offset INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, part_id)
) WITHOUT ROWID;
CREATE TABLE housekeeping (id INTEGER PRIMARY KEY CHECK (id = 1), due_at REAL NOT NULL);
INSERT INTO housekeeping VALUES (1, 0);
"""


def create_or_check(
    connection: sqlite3.Connection, path: Path, specs: Sequence[TopicSpec], partitions: int, *, update: bool
) -> None:
    """Make the tables in an empty file and add topics that are missing; call inside a write transaction.

    The partition count of a topic that exists stays: changing it would move keys and break their order.

    Raises:
        TransportError: the file belongs to something else or to a newer version of this package.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if empty:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif application != APPLICATION_ID:
        raise TransportError(
            f"{path} is a database of something else: give the log a file of its own (log_url)"
        )
    elif version > SCHEMA_VERSION:
        raise TransportError(
            f"{path} was written by a newer version (log schema {version}, this one reads {SCHEMA_VERSION}): "
            "update adaptive-speculator, or give this version another file (log_url)"
        )
    _add_topics(connection, specs, partitions, update)


def _add_topics(
    connection: sqlite3.Connection, specs: Sequence[TopicSpec], partitions: int, update: bool
) -> None:
    for spec in specs:
        row = connection.execute("SELECT id FROM topic WHERE name = ?", (spec.name,)).fetchone()
        if row is None:
            topic = connection.execute(
                "INSERT INTO topic (name, compacted, retention_seconds, retention_bytes) VALUES (?, ?, ?, ?)",
                (spec.name, spec.compacted, spec.retention_seconds, spec.retention_bytes),
            ).lastrowid
            connection.executemany(
                "INSERT INTO part (topic_id, number) VALUES (?, ?)",
                [(topic, number) for number in range(partitions)],
            )
        elif update:
            connection.execute(
                "UPDATE topic SET retention_seconds = ?, retention_bytes = ? WHERE id = ?",
                (spec.retention_seconds, spec.retention_bytes, row[0]),
            )
