"""What the embedded log does when the disk, the file or another process is at fault."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adaptive.contracts import TOPIC_TRACE_RECORDED as TOPIC
from collectors.open import open_transport
from collectors.sqlite import SqliteTransport
from collectors.transport import OutgoingRecord, TransportError, TransportUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.collectors.conftest import Log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log of a test lies."""
    return tmp_path / "log.db"


@pytest.fixture
def transport(path: Path) -> Iterator[SqliteTransport]:
    """An empty embedded log that does not wait long for locks."""
    opened = SqliteTransport(path, busy_seconds=0.3)
    yield opened
    opened.close()


def stored(transport: SqliteTransport) -> list[bytes | None]:
    """Values of everything in the log, for one key only."""
    reader = transport.consumer([TOPIC], None)
    records = []
    while batch := reader.poll(0):
        records += batch
    reader.close()
    return [record.value for record in records]


def fill_up(transport: SqliteTransport) -> list[bytes]:
    """Append incompressible records until the log refuses; returns those it accepted."""
    accepted: list[bytes] = []
    for _ in range(1000):
        value = os.urandom(20_000)
        try:
            transport.send(TOPIC, "a", value)
        except TransportUnavailableError:
            return accepted
        accepted.append(value)
    pytest.fail("the log never became full")


def test_a_full_disk_is_named_and_loses_nothing(transport: SqliteTransport, path: Path) -> None:
    """SQLITE_FULL: the error says so, every accepted record is there, and it goes on once there is space."""
    connection = transport._database._connection()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 40}")
    accepted = fill_up(transport)
    assert len(accepted) > 5
    with pytest.raises(TransportUnavailableError, match=f"no space left for the log {path}"):
        transport.send_many(
            [OutgoingRecord(TOPIC, "a", b"small"), OutgoingRecord(TOPIC, "a", os.urandom(50_000))]
        )
    assert stored(transport) == accepted
    connection.execute("PRAGMA max_page_count = 1000000")
    transport.send(TOPIC, "a", b"after")
    assert stored(transport) == [*accepted, b"after"]


_LIMITED = """
import os, resource, signal, sys
from pathlib import Path
from collectors.sqlite import SqliteTransport
from collectors.transport import TransportUnavailableError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
transport = SqliteTransport(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
accepted = 0
try:
    for _ in range(1000):
        transport.send(sys.argv[2], "a", os.urandom(20_000))
        accepted += 1
except TransportUnavailableError as error:
    print(accepted, error)
os._exit(0)
"""


def test_a_write_that_fails_half_way_leaves_nothing(transport: SqliteTransport) -> None:
    """Whatever ends a write transaction early, nothing of it is kept and the next one works."""
    transport.send(TOPIC, "a", b"1")

    def interrupted() -> None:
        with transport._database.write() as connection:
            connection.execute("DELETE FROM record")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stored(transport) == [b"1"]
    transport.send(TOPIC, "a", b"2")
    assert stored(transport) == [b"1", b"2"]


def test_a_write_the_kernel_refuses_loses_nothing(path: Path) -> None:
    """A file size limit hit in mid-write is a clear error; another process reads what was kept."""
    limited = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path), TOPIC],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    accepted, message = limited.stdout.split(" ", 1)
    assert int(accepted) > 5
    assert str(path) in message
    assert "space" in message
    transport = SqliteTransport(path)
    assert len(stored(transport)) == int(accepted)
    transport.send(TOPIC, "a", b"after")
    assert stored(transport)[-1] == b"after"
    transport.close()


@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
def test_a_lock_of_another_process_is_waited_for(log: Log) -> None:
    """Another process that holds the log for some seconds delays an append, no more."""
    transport = log.open()
    holder = log.start("hold", seconds=2.0)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    started = time.monotonic()
    transport.send(TOPIC, "a", b"1")
    assert time.monotonic() - started > 1
    assert sum(transport.end_offsets(TOPIC).values()) == 1


@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
def test_a_lock_that_lasts_is_a_clear_error(log: Log, tmp_path: Path) -> None:
    """Beyond the wait: an error names file and remedy, reading goes on, and so does writing later."""
    log.open()
    transport = SqliteTransport(tmp_path / "log.db", busy_seconds=0.3)
    holder = log.start("hold", seconds=20.0)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(
        TransportUnavailableError, match=r"log\.db was locked by another process for over 0\.3 s"
    ):
        transport.send(TOPIC, "a", b"1")
    assert stored(transport) == []
    holder.kill()
    holder.wait()
    transport.send(TOPIC, "a", b"2")
    assert stored(transport) == [b"2"]
    transport.close()


def test_a_consumer_outlives_a_locked_log(transport: SqliteTransport, path: Path) -> None:
    """Commits fail while the log is locked and work afterwards; the position has not moved."""
    transport.send(TOPIC, "a", b"1")
    consumer = transport.consumer([TOPIC], "group")
    assert len(consumer.poll(0)) == 1
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransportUnavailableError, match="locked"):
        consumer.commit()
    other.execute("ROLLBACK")
    other.close()
    consumer.commit()
    consumer.close()
    assert sum(transport.consumer([TOPIC], "group").lag().values()) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"this is not a database, but long enough to look at" * 50, "damaged or no log"), (b"", None)],
)
def test_a_file_that_is_no_log_is_refused(path: Path, content: bytes, message: str | None) -> None:
    """A file of something else is named and left alone; an empty one becomes a log."""
    path.write_bytes(content)
    if message is None:
        SqliteTransport(path).close()
        return
    with pytest.raises(TransportError, match=message):
        SqliteTransport(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused(path: Path) -> None:
    """Another program's SQLite file is not turned into a log."""
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE experiments (id INTEGER)")
    other.close()
    with pytest.raises(TransportError, match=r"database of something else: give the log a file of its own"):
        SqliteTransport(path)


def test_a_log_of_a_newer_version_is_refused(path: Path) -> None:
    """A file with a later schema is not written to."""
    SqliteTransport(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(TransportError, match=r"newer version \(log schema 99, this one reads 1\): update"):
        SqliteTransport(path)


def test_a_damaged_log_is_a_clear_error(path: Path) -> None:
    """Overwritten pages are reported as damage, with the file's name."""
    transport = SqliteTransport(path)
    transport.send_many([OutgoingRecord(TOPIC, "a", os.urandom(5000)) for _ in range(100)])
    transport.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    with pytest.raises(TransportError, match=r"log\.db is damaged"):
        SqliteTransport(path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in the way of the log's directory is a clear error that a publisher retries."""
    (tmp_path / "file").touch()
    with pytest.raises(TransportUnavailableError, match=r"cannot make the directory of the log"):
        SqliteTransport(tmp_path / "file" / "log.db")


def test_processes_create_the_log_at_once(tmp_path: Path) -> None:
    """Whoever comes first makes the tables; nobody fails."""
    code = "import sys; from collectors.open import open_transport; open_transport(sys.argv[1]).close()"
    url = f"sqlite:///{tmp_path}/new/log.db"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url], cwd=Path(__file__).parents[3]) for _ in range(4)
    ]
    assert [process.wait(60) for process in processes] == [0] * 4
    transport = open_transport(url)
    assert set(transport.end_offsets(TOPIC).values()) == {0}
    transport.close()


def test_a_forked_child_uses_connections_of_its_own(transport: SqliteTransport) -> None:
    """The child of a fork appends through the parent's transport without harm to either."""
    transport.send(TOPIC, "a", b"parent")
    inherited = transport._database._connection()
    child = os.fork()
    if child == 0:
        try:
            transport.send(TOPIC, "a", b"child")
            os._exit(1 if transport._database._connection() is inherited else 0)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    transport.send(TOPIC, "a", b"parent again")
    assert stored(transport) == [b"parent", b"child", b"parent again"]


def test_a_copy_taken_while_in_use_is_whole(transport: SqliteTransport, path: Path, tmp_path: Path) -> None:
    """After a crash (file and WAL as they are) everything that was accepted is there."""
    values = [str(number).encode() for number in range(50)]
    for value in values:
        transport.send(TOPIC, "a", value)
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{tmp_path}/crashed.db{suffix}")
    crashed = SqliteTransport(tmp_path / "crashed.db")
    assert stored(crashed) == values
    crashed.close()
