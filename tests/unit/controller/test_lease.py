"""The leader's lease: one holder, no shared clock, fenced writes; and a database that is locked."""

from __future__ import annotations

import sqlite3
import subprocess
from typing import TYPE_CHECKING

import pytest

from controller import lease
from controller.database import Database
from controller.lease import LeaderDatabase, LeaderLease, LeaseLostError
from controller.models import Lease

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.controller.conftest import Bench


class Ticks:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A migrated database."""
    database = Database(f"sqlite:///{tmp_path}/control.db")
    database.migrate()
    yield database
    database.close()


def test_one_of_two_holds_the_lease_until_it_falls_silent(database: Database) -> None:
    """The other takes it over once it has seen no beat for the lease's time, and the first then stands by."""
    clocks = [Ticks(), Ticks()]
    first, second = (LeaderLease(database, clock) for clock in clocks)
    assert first.hold()
    for _ in range(20):
        for clock in clocks:
            clock.now += 3
        assert first.hold()
        assert not second.hold()
    clocks[1].now += lease.LEASE_SECONDS - 1
    assert not second.hold()
    clocks[1].now += 1
    assert second.hold()
    clocks[0].now += 3
    assert not first.hold()


def test_clocks_that_differ_or_jump_move_nothing(database: Database) -> None:
    """Each measures silence by its own monotonic clock only: no time is in the database."""
    clocks = [Ticks(), Ticks()]
    clocks[1].now = 1e9
    first, second = (LeaderLease(database, clock) for clock in clocks)
    assert first.hold()
    assert not second.hold()
    clocks[0].now += 3
    assert first.hold()
    assert not second.hold()
    assert {column.name for column in Lease.__table__.columns} == {"name", "holder", "term", "beat"}


def test_a_former_holder_writes_nothing(database: Database) -> None:
    """A leader that was stopped and goes on after another took over is fenced at its next write."""
    clock = Ticks()
    first, second = LeaderLease(database), LeaderLease(database, clock)
    assert first.hold()
    assert not second.hold()
    clock.now += lease.LEASE_SECONDS
    assert second.hold()
    assert first.held
    with pytest.raises(LeaseLostError), LeaderDatabase(database, first).write():
        pytest.fail("the block must not run")
    assert not first.held
    with LeaderDatabase(database, second).write():
        pass


def test_a_lease_that_is_given_back_is_free_at_once(database: Database) -> None:
    """An orderly end costs no wait; nor does the end of a process on the same host."""
    first, second, third = (LeaderLease(database) for _ in range(3))
    assert first.hold()
    first.give_back()
    assert second.hold()
    ended = subprocess.Popen(["true"])
    ended.wait()
    with database.write() as session:
        row = session.get_one(Lease, lease.NAME)
        host, _, rest = row.holder.rsplit(":", 2)
        row.holder = f"{host}:{ended.pid}:{rest}"
    assert third.hold()


def test_a_clock_put_back_or_forward_loses_nothing(bench: Bench) -> None:
    """Decisions, promotion and erasure go on whatever the wall clock says."""
    bench.create()
    bench.clock.now += 10 * 365 * 86_400
    bench.publish(1)
    assert bench.tenant()["champion"] == 1
    bench.clock.now -= 20 * 365 * 86_400
    bench.publish(2)
    assert bench.tenant()["champion"] == 2
    assert bench.request("POST", "/v1/tenants/acme/rollback")["champion"] == 1
    assert bench.policies()["acme"].policy_version == 4


def test_a_locked_database_is_a_503_and_nothing_is_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another program holds the write lock reads go on, writes say what to do, and later they work."""
    bench.create()
    monkeypatch.setattr("controller.database.BUSY_SECONDS", 0.1)
    bench.control.database.close()
    other = sqlite3.connect(bench.settings.home / "control.db", isolation_level=None)
    for connection in (bench.control.database._engine.raw_connection(),):
        connection.cursor().execute("PRAGMA busy_timeout=100")
        connection.close()
    other.execute("BEGIN IMMEDIATE")
    answer = bench.client.patch("/v1/tenants/acme", json={"freeze": True})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert "no other program holds a lock" in answer.json()["detail"]
    assert bench.tenant()["freeze"] is False
    other.execute("ROLLBACK")
    other.close()
    assert bench.request("PATCH", "/v1/tenants/acme", {"freeze": True})["freeze"] is True
