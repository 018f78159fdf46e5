"""The controller's database: one engine, read and write transactions, migrations at start."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY_SECONDS = 5.0
POOL_SECONDS = 10.0
CONNECTIONS = 20
MIGRATION_LOCK = 0x616461707469


class DatabaseUrlError(ValueError):
    """The database URL names no database that can be opened."""


class DatabaseBusyError(Exception):
    """Another connection is in the way: the same call may succeed later."""


class Database:
    """Sessions on one database.

    SQLite runs in WAL mode. Its write transactions take the write lock when they begin: a transaction that
    read first and asked for the lock later would fail at once, without waiting, if another had written.

    Args:
        url: SQLAlchemy URL, for instance `sqlite:///path/control.db`.

    Raises:
        DatabaseUrlError: the URL cannot be parsed or its driver is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
            # Connections that the server closed meanwhile are replaced instead of failing a request.
            options: dict[str, Any] = {
                "pool_size": CONNECTIONS,
                "pool_timeout": POOL_SECONDS,
                "pool_pre_ping": parsed.get_backend_name() != "sqlite",
            }
            if parsed.get_backend_name() == "sqlite":
                options["connect_args"] = {"timeout": BUSY_SECONDS}
            self._engine = create_engine(parsed, **options)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise DatabaseUrlError(
                f"database_url {url!r} cannot be used ({error}): set ADAPTIVE_DATABASE_URL to a SQLAlchemy "
                "URL such as sqlite:////var/lib/adaptive/control.db and install its driver"
            ) from error
        self._writer = self._engine
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
            self._writer = self._engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")

    def migrate(self) -> None:
        """Bring the schema to the newest revision."""
        config = Config()
        config.set_main_option("script_location", "controller:migrations")
        with self._writer.begin() as connection:
            if self._engine.dialect.name == "postgresql":  # of controllers that start at once, one migrates
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session for reading; what it changes is discarded."""
        with Session(self._engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a session that commits at the end, or rolls back if the block raises."""
        # What a block returns stays readable after the commit.
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def scrub(self) -> None:
        """Leave nothing of deleted rows in the file; only SQLite needs it.

        Deleting overwrites (`secure_delete`), yet the write-ahead log keeps old pages until it is emptied,
        and free pages of older versions were never wiped.

        Raises:
            DatabaseBusyError: another connection is in the way: do it again.
        """
        if self._engine.dialect.name != "sqlite":
            return
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute("VACUUM")
            busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            cursor.close()
        finally:
            connection.close()
        if busy:
            raise DatabaseBusyError("a reader keeps the database's write-ahead log: it is emptied later")

    def ping(self) -> None:
        """Run a trivial query; raises what the driver raises when the database is away."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every pooled connection."""
        self._engine.dispose()


def _configure_sqlite(connection: Any, _record: object) -> None:
    # The driver must not open transactions by itself: `_begin_sqlite` does, with the right lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))
