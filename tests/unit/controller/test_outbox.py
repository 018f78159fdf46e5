"""What was decided reaches the log whatever breaks in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adaptive.contracts import TOPIC_POLICY_DECIDED, TOPIC_TENANT_CHANGED, PolicyDecided, decode
from collectors.transport import TransportUnavailableError
from controller import outbox
from controller.app import create_app
from tests.unit.controller.conftest import lead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.transport import OutgoingRecord, Transport
    from controller.database import Database
    from tests.unit.controller.conftest import Bench


def logged(bench: Bench) -> list[int]:
    """Policy versions of the tenant in the order in which they are on the log."""
    found = []
    for partition, end in bench.transport.end_offsets(TOPIC_POLICY_DECIDED).items():
        for record in bench.transport.read(TOPIC_POLICY_DECIDED, partition, 0, end - 1) if end else ():
            assert record.value is not None
            found.append(decode(record.value, PolicyDecided).policy_version)
    return found


def test_a_crash_before_sending_loses_nothing(bench: Bench) -> None:
    """What was committed when the controller died is sent by the next one, in order."""
    bench.create()
    bench.request("PATCH", "/v1/tenants/acme", {"weight": 0.5})
    assert logged(bench) == []
    bench.control.database.close()
    successor = create_app(bench.settings, bench.clock).state.control
    lead(successor)
    assert outbox.relay(successor.database, bench.transport) == 3
    assert logged(bench) == [1, 2]
    assert bench.policies()["acme"].weight == 0.5
    successor.database.close()


def test_a_crash_after_sending_sends_again_in_order(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dying between send and delete repeats messages; the newest stays the last."""
    bench.create()
    bench.request("PATCH", "/v1/tenants/acme", {"weight": 0.5})

    def die(_timeout: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench.transport, "flush", die)
        with pytest.raises(KeyboardInterrupt):
            outbox.relay(bench.control.database, bench.transport)
    outbox.relay(bench.control.database, bench.transport)
    assert logged(bench) == [1, 2, 1, 2]
    assert bench.policies()["acme"].policy_version == 2
    assert outbox.relay(bench.control.database, bench.transport) == 0


def test_a_log_that_is_away_stops_no_operator(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API goes on; the messages wait, readiness and metrics tell, and they leave when the log is back."""

    def away(_batch: Sequence[OutgoingRecord]) -> None:
        raise TransportUnavailableError("the log is away")

    with monkeypatch.context() as patch:
        patch.setattr(bench.control.relay._transport, "send_many", away)
        bench.create()
        with pytest.raises(TransportUnavailableError):
            bench.control.relay.round()
        assert "adaptive_control_outbox_pending 2.0" in bench.client.get("/metrics").text
    bench.control.relay.round()
    assert logged(bench) == [1]
    assert "adaptive_control_outbox_pending 0.0" in bench.client.get("/metrics").text


def test_a_change_that_fails_announces_nothing(bench: Bench) -> None:
    """Change and message become true together or not at all."""
    bench.create()
    bench.policies()
    bench.request("PATCH", "/v1/tenants/acme", {"weight": 0.5, "pin": 9}, 422)
    bench.request("PATCH", "/v1/tenants/acme", {"learn": False, "max_lookahead": 99}, 422)
    with bench.control.database.read() as session:
        assert outbox.pending(session) == 0
    assert bench.tenant()["weight"] == 1.0


def test_a_lost_database_counts_on_from_the_log(bench: Bench) -> None:
    """Engines ignore older policies, so a tenant made anew starts above what the log has seen."""
    bench.create()
    bench.request("PATCH", "/v1/tenants/acme", {"weight": 0.5})
    assert bench.policies()["acme"].policy_version == 2
    bench.control.database.close()
    for file in bench.settings.home.glob("control.db*"):
        file.unlink()
    bench.app.state.control = create_app(bench.settings, bench.clock).state.control
    lead(bench.control)
    bench.create()
    assert bench.policies()["acme"].policy_version == 3
    assert bench.accounts()["acme"].revision == 2


def test_failed_rounds_are_retried_by_the_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running controller survives failures of the log, counts them, and works on afterwards."""
    failures = 2
    original = outbox.relay

    def flaky(database: Database, transport: Transport) -> int:
        nonlocal failures
        if failures:
            failures -= 1
            raise TransportUnavailableError("the log is away")
        return original(database, transport)

    monkeypatch.setattr("controller.outbox.relay", flaky)
    monkeypatch.setattr("controller.workers.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("controller.workers.POLL_SECONDS", 0.05)
    with bench.client:
        bench.create()
        for _ in range(200):
            if logged(bench):
                break
            bench.control.policy._stopping.wait(0.02)
        assert logged(bench) == [1]
        text = bench.client.get("/metrics").text
    assert 'adaptive_control_worker_failures_total{worker="relay"} 2.0' in text


def test_what_an_erasure_adds_while_its_tenant_is_being_sent_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay deletes what it sent, never tombstones that took the ids of rows deleted meanwhile."""
    bench.create()
    send = bench.transport.send_many

    def erase_meanwhile(batch: Sequence[OutgoingRecord]) -> None:
        send(batch)
        monkeypatch.undo()
        bench.client.delete("/v1/tenants/acme").raise_for_status()

    monkeypatch.setattr(bench.transport, "send_many", erase_meanwhile)
    outbox.relay(bench.control.database, bench.transport)
    for topic in (TOPIC_TENANT_CHANGED, TOPIC_POLICY_DECIDED):
        values = [
            record.value
            for partition, end in bench.transport.end_offsets(topic).items()
            for record in (bench.transport.read(topic, partition, 0, end - 1) if end else ())
        ]
        assert values[-1] is None, f"no tombstone in {topic}"
