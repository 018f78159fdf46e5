"""Connections to the log file: one per thread, short transactions, errors that name the remedy."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Final

from collectors.transport import TransportError, TransportUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAGE_BYTES: Final = 8192


class Database:
    """A SQLite file in WAL mode, opened once per thread that uses it."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self.path: Final = path
        self.busy_seconds: Final = busy_seconds
        self._local: Final = threading.local()
        self._lock: Final = threading.Lock()
        self._connections: dict[threading.Thread, sqlite3.Connection] = {}
        self._inherited: Final[list[object]] = []
        self._pid = os.getpid()
        self._closed = False

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: everything in it sees one state of the log."""
        with self._errors():
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: taken at once (BEGIN IMMEDIATE), kept whole or not at all."""
        with self._errors():
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def data_version(self) -> int:
        """A number that changes when another connection commits; costs no disk access."""
        with self._errors():
            version: int = self._connection().execute("PRAGMA data_version").fetchone()[0]
            return version

    def checkpoint(self) -> bool:
        """Write the write-ahead log back and empty it; False while a reader still needs it."""
        with self._errors():
            busy: int = self._connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            return not busy

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            self._closed = True
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def close_thread(self) -> None:
        """Close the calling thread's connection."""
        with self._lock:
            connection = self._connections.pop(threading.current_thread(), None)
        if connection is not None:
            connection.close()
        self._local.__dict__.clear()

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise TransportError(f"the log {self.path} was closed here: open it again")
        # A forked child must neither use nor close its parent's connections (SQLite's rule).
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.connection = self._connect()
            self._local.pid = os.getpid()
        connection: sqlite3.Connection = self._local.connection
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self.busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if self._pid != os.getpid():
                self._inherited.append(self._connections)
                self._connections, self._pid = {}, os.getpid()
            for thread in [thread for thread in self._connections if not thread.is_alive()]:
                self._connections.pop(thread).close()
            self._connections[threading.current_thread()] = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # Two processes that switch a new file to WAL at once get BUSY without SQLite's own waiting.
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous = FULL")
        # What retention or an erasure deletes is overwritten: free pages hold nobody's prompts.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> TransportError:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return TransportUnavailableError(
                f"the log {self.path} was locked by another process for over {self.busy_seconds:g} s: "
                "find it with `fuser`, end it, then retry"
            )
        if name.startswith("SQLITE_FULL"):
            return TransportUnavailableError(
                f"no space left for the log {self.path}: free disk space or shorten its retention; "
                "what it had accepted is kept"
            )
        if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
            return TransportUnavailableError(
                f"cannot use the log {self.path} ({error}): check that its directory exists on a local disk, "
                "is writable and has space"
            )
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return TransportError(
                f"the log {self.path} is damaged or no log ({error}): restore or move it away, and retry"
            )
        return TransportError(f"the log {self.path} failed: {name} {error}")
