"""Erasing a tenant from the embedded log: the file itself, byte by byte."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from adaptive import contracts
from adaptive.contracts import (
    TOPIC_ENGINE_TELEMETRY,
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    Arm,
    ArmCounters,
    EngineTelemetry,
)
from collectors.erasure import ErasableLog, watermarks
from collectors.sqlite import SqliteTransport
from collectors.transport import OutgoingRecord
from tests.integration.collectors.test_messages import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEAD_LETTERS = TOPIC_TRACE_RECORDED + contracts.DEAD_LETTER_SUFFIX
SECRET = b"the canary sings at midnight"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The log's file."""
    return tmp_path / "log.db"


@pytest.fixture
def transport(path: Path) -> Iterator[SqliteTransport]:
    """An empty log."""
    made = SqliteTransport(path)
    yield made
    made.close()


def files_hold(path: Path, secret: bytes) -> bool:
    """Whether any file of the log holds these bytes, in free pages or the write-ahead log too."""
    return any(secret in file.read_bytes() for file in path.parent.iterdir())


def telemetry(tenant: str) -> bytes:
    """A report that counts for a tenant."""
    counters = [ArmCounters(tenant=tenant, arm=Arm.TURBO, version=0, requests=1)]
    return contracts.encode(EngineTelemetry("e", 0.0, 0.0, "", "", counters, [], {}, {}, []))


def erase(transport: SqliteTransport, tenant: str) -> dict[str, int]:
    """Erase everything up to now."""
    topics = {topic + end for topic in contracts.TOPICS for end in ("", contracts.DEAD_LETTER_SUFFIX)}
    return transport.erase(tenant, watermarks(transport, topics))


def test_the_tenants_records_are_deleted_everywhere_and_others_stay(transport: SqliteTransport) -> None:
    """Traces, dead letters, compacted state and telemetry that names the tenant; never another's."""
    assert isinstance(transport, ErasableLog)
    for tenant in ("acme", "acme2"):
        for topic in (TOPIC_TRACE_RECORDED, DEAD_LETTERS, TOPIC_POLICY_DECIDED):
            transport.send(topic, tenant, b"value of " + tenant.encode())
        transport.send(TOPIC_ENGINE_TELEMETRY, "engine", telemetry(tenant))
    assert erase(transport, "acme") == {
        TOPIC_TRACE_RECORDED: 1,
        DEAD_LETTERS: 1,
        TOPIC_POLICY_DECIDED: 1,
        TOPIC_ENGINE_TELEMETRY: 1,
    }
    for topic in (TOPIC_TRACE_RECORDED, DEAD_LETTERS, TOPIC_POLICY_DECIDED):
        assert [record.key for record in read_all(transport, topic)] == ["acme2"]
    assert [record.value for record in read_all(transport, TOPIC_ENGINE_TELEMETRY)] == [telemetry("acme2")]
    assert erase(transport, "acme") == {}, "done again it finds nothing"


def test_not_even_the_files_bytes_remain(transport: SqliteTransport, path: Path) -> None:
    """Small rows and rows over many pages, in the database and in its write-ahead log."""
    for number in range(50):
        transport.send(TOPIC_TRACE_RECORDED, "acme", SECRET + bytes([number]))
        transport.send(TOPIC_TRACE_RECORDED, "acme", SECRET + os.urandom(30_000) + SECRET)
        transport.send(TOPIC_TRACE_RECORDED, "other", b"kept" + os.urandom(100))
    assert files_hold(path, SECRET)
    assert erase(transport, "acme") == {TOPIC_TRACE_RECORDED: 100}
    assert not files_hold(path, SECRET)
    assert not files_hold(path, b"acme")
    assert len(read_all(transport, TOPIC_TRACE_RECORDED)) == 50


def test_what_retention_deleted_earlier_is_not_in_the_free_pages(tmp_path: Path) -> None:
    """Records that expired before the erasure left no bytes behind either."""
    now = [1e9]
    transport = SqliteTransport(tmp_path / "log.db", clock=lambda: now[0])
    for number in range(40):
        transport.send(TOPIC_TRACE_RECORDED, "acme", SECRET + os.urandom(5_000 + number))
    now[0] += 30 * 86_400
    assert transport.enforce_retention() == 40
    erase(transport, "acme")
    assert not files_hold(tmp_path / "log.db", SECRET)
    transport.close()


def test_tombstones_and_the_erasure_itself_stay(transport: SqliteTransport) -> None:
    """A reader that was away still hears that the account is gone, and which records to leave out."""
    transport.send(TOPIC_TENANT_CHANGED, "acme", b"account")
    transport.send(TOPIC_TENANT_CHANGED, "acme", None)
    transport.send(TOPIC_TENANT_ERASED, "acme", b"erased")
    erase(transport, "acme")
    assert [record.value for record in read_all(transport, TOPIC_TENANT_CHANGED)] == [None]
    assert [record.value for record in read_all(transport, TOPIC_TENANT_ERASED)] == [b"erased"]


def test_records_above_the_watermark_stay(transport: SqliteTransport) -> None:
    """A tenant created again under the name keeps what it sends."""
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"old")
    marks = watermarks(transport, {TOPIC_TRACE_RECORDED})
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"new")
    assert transport.erase("acme", marks) == {TOPIC_TRACE_RECORDED: 1}
    assert [record.value for record in read_all(transport, TOPIC_TRACE_RECORDED)] == [b"new"]


def test_appending_and_reading_go_on_meanwhile(transport: SqliteTransport, path: Path) -> None:
    """Another process's records are taken while thousands are erased, and the byte count stays true."""
    pair = [OutgoingRecord(TOPIC_TRACE_RECORDED, tenant, b"x" * 100) for tenant in ("acme", "other")]
    transport.send_many(pair * 3000)
    other = SqliteTransport(path)
    stop = threading.Event()
    sent = []

    def append() -> None:
        while not stop.is_set():
            other.send(TOPIC_TRACE_RECORDED, "other", b"meanwhile")
            sent.append(1)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        assert erase(transport, "acme") == {TOPIC_TRACE_RECORDED: 3000}
    finally:
        stop.set()
        thread.join()
    assert len(sent) > 3
    records = read_all(transport, TOPIC_TRACE_RECORDED)
    assert len(records) == 3000 + len(sent)
    with transport._database.read() as connection:
        counted = connection.execute("SELECT sum(bytes) FROM part").fetchone()[0]
        there = connection.execute("SELECT sum(bytes) FROM record").fetchone()[0]
    assert counted == there
    other.close()
