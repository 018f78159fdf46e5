"""Engines' running totals become counts per tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_ENGINE_TELEMETRY,
    Arm,
    ArmCounters,
    EngineTelemetry,
)
from controller.database import Database
from controller.models import ArmSample, ArmTotal, Tenant
from controller.telemetry import SAMPLE_RETENTION_SECONDS, prune, record_telemetry
from controller.workers import GROUP

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.controller.conftest import Bench

increments = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=1, max_size=12
)


def report(started_at: float, reported_at: float, steps: int, accepted: int, tenant: str) -> EngineTelemetry:
    """Totals of one arm since the engine started."""
    counters = ArmCounters(
        tenant,
        Arm.TURBO,
        0,
        requests=steps,
        verify_steps=steps,
        drafted=4 * steps,
        accepted=accepted,
        accepted_per_position=[accepted],
        emitted=steps + accepted,
        engine_seconds=float(steps),
    )
    return EngineTelemetry("engine", started_at, reported_at, "t", "d", [counters], [], {}, {}, [])


def database(path: Path) -> Database:
    """A database with one tenant."""
    made = Database(f"sqlite:///{path}")
    made.migrate()
    with made.write() as session:
        session.add(
            Tenant(
                id="acme",
                created_at=0,
                state="active",
                learn=True,
                share=False,
                freeze=False,
                pin=None,
                weight=1,
                max_lookahead=4,
                control_share=0,
                off_share=0,
                revision=1,
                policy_version=1,
                decided_at=0,
                champion=None,
                champion_since=0,
            )
        )
    return made


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(rounds=increments)
def test_totals_are_exact_whatever_is_lost_repeated_or_restarted(
    tmp_path: Path, rounds: list[tuple[int, int, bool]]
) -> None:
    """Each report twice and out of order, with restarts of the engine between, adds up to what was served."""
    path = tmp_path / "control.db"
    path.unlink(missing_ok=True)
    store = database(path)
    started, now, steps, accepted = 0.0, 0.0, 0, 0
    served_steps = served_accepted = 0
    earlier: list[EngineTelemetry] = []
    for more_steps, more_accepted, restarts in rounds:
        now += 3
        if restarts:
            started, steps, accepted = now, 0, 0
            now += 1
        steps, accepted = steps + more_steps, accepted + more_accepted
        served_steps, served_accepted = served_steps + more_steps, served_accepted + more_accepted
        newest = report(started, now, steps, accepted, "acme")
        with store.write() as session:
            for item in (newest, newest, *earlier):
                record_telemetry(session, item, now)
        earlier.append(newest)
    with store.read() as session:
        total = session.get(ArmTotal, ("acme", "turbo", 0))
        sums = session.execute(select(func.sum(ArmSample.verify_steps), func.sum(ArmSample.accepted))).one()
    store.close()
    if total is None:
        assert served_steps == 0
        return
    assert (total.verify_steps, total.accepted, total.emitted) == (
        served_steps,
        served_accepted,
        served_steps + served_accepted,
    )
    assert sum(total.accepted_per_position) == served_accepted
    assert total.engine_seconds == served_steps
    assert tuple(sums) == (served_steps, served_accepted)


def test_counters_of_unknown_tenants_are_left_out(tmp_path: Path) -> None:
    """A tenant that is not in the database gets no rows."""
    store = database(tmp_path / "control.db")
    with store.write() as session:
        record_telemetry(session, report(0, 1, 10, 5, "stranger"), 1)
        assert session.scalars(select(ArmTotal)).all() == []
    store.close()


def test_old_samples_go_and_totals_stay(tmp_path: Path) -> None:
    """The time series keeps a day."""
    store = database(tmp_path / "control.db")
    with store.write() as session:
        record_telemetry(session, report(0, 100, 10, 5, "acme"), 100)
        record_telemetry(session, report(0, 200, 20, 5, "acme"), 200)
        prune(session, 150 + SAMPLE_RETENTION_SECONDS)
        assert session.scalars(select(ArmSample.bucket)).all() == [200]
        assert session.get_one(ArmTotal, ("acme", "turbo", 0)).verify_steps == 20
    store.close()


def test_a_restarted_controller_goes_on_from_the_last_report(bench: Bench) -> None:
    """Totals survive in the database: a report known before the restart is not counted again."""
    bench.create()
    bench.clock.now += 1
    newest = ArmCounters(
        "acme", Arm.TURBO, 0, requests=1, verify_steps=30, drafted=120, accepted=40, emitted=70
    )
    bench.report([newest])
    bench.control.policy.reset()
    bench.report([newest])
    bench.clock.now += 1
    bench.report([newest])
    assert bench.tenant()["arms"][0]["verify_steps"] == 30


def test_what_was_recorded_is_not_read_again(bench: Bench) -> None:
    """The controller's place in the log moves on with what its database holds."""
    bench.create()
    bench.publish(1)
    bench.report([ArmCounters("acme", Arm.TURBO, 0, requests=1)])
    bench.control.policy.reset()
    consumer = bench.transport.consumer([TOPIC_DRAFTER_PUBLISHED, TOPIC_ENGINE_TELEMETRY], GROUP)
    assert consumer.poll(0.2) == []
    assert set(consumer.lag().values()) == {0}
    consumer.close()
