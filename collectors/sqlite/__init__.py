"""The embedded log: the transport of one machine, one SQLite file in WAL mode shared by every process."""

from __future__ import annotations

from collectors.sqlite.transport import SqliteTransport

__all__ = ["SqliteTransport"]
