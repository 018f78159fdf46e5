"""Erasing on a real Kafka broker, and a database that was made before erasures existed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from alembic import command
from alembic.config import Config
from fastapi.testclient import TestClient
from sqlalchemy import text

from adaptive.cli.erased import prove_erased
from adaptive.contracts import (
    TOPIC_ERASURE_ACKNOWLEDGED,
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    ErasureAcknowledged,
    TenantErased,
    decode,
    encode,
)
from adaptive.settings import Settings
from collectors.consumer import TraceConsumer
from collectors.erasure import ErasedTenants
from collectors.open import open_transport
from controller import erasing
from controller.app import create_app
from controller.database import Database
from tests.integration.collectors.test_messages import read_all, trace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DAY = 86_400.0


def test_on_kafka_watermarks_hide_the_records_and_tombstones_clear_the_state(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reader is given a record of the tenant any more, and the date by which the bytes go is told."""
    monkeypatch.setattr(erasing, "POLL_SECONDS", 0.05)
    settings = Settings(home=tmp_path, log_url=kafka_url, admin_key="adm", retention_days=3)
    log = open_transport(kafka_url)
    headers = {"Authorization": "Bearer adm"}
    began = time.time()
    with TestClient(create_app(settings), headers=headers) as client:
        client.post("/v1/tenants", json={"id": "acme", "learn": True}).raise_for_status()
        for number, tenant in enumerate(("acme", "other", "acme")):
            log.send(TOPIC_TRACE_RECORDED, tenant, encode(trace(number, tenant)))
        log.flush(10)
        job: dict[str, Any] = client.delete("/v1/tenants/acme").json()

        def until(wanted: str) -> dict[str, Any]:
            deadline = time.monotonic() + 30
            while True:
                found: dict[str, Any] = client.get(f"/v1/jobs/{job['id']}").json()
                # A step is entered before it says whom it waits for.
                if wanted in (found["step"], found["state"]) and (found["waiting"] or wanted == "done"):
                    return found
                assert time.monotonic() < deadline, found
                time.sleep(0.1)

        assert until("acknowledge")["waiting"] == "learner: has not answered yet"
        late = msgspec.structs.replace(trace(3, "acme"), trace_id="late")
        log.send(TOPIC_TRACE_RECORDED, "acme", encode(late))  # before the seal
        answer = ErasureAcknowledged("acme", job["id"], "learner", time.time(), done=True)
        log.send(TOPIC_ERASURE_ACKNOWLEDGED, "acme", encode(answer))
        log.flush(10)
        done = until("done")
        assert began + 3 * DAY < done["kafka_gone_by"] < time.time() + 3 * DAY
        deadline = time.monotonic() + 60
        while not any(message.sealed for message in announcements(log)) or not all(
            [record.value for record in read_all(log, topic) if record.key == "acme"][-1:] == [None]
            for topic in (TOPIC_TENANT_CHANGED, TOPIC_POLICY_DECIDED)
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    with ErasedTenants(log) as erased, TraceConsumer(log, "learners", erased=erased) as consumer:
        delivered: list[str] = []
        for _ in range(50):
            delivered += [item.message.tenant for item in consumer.poll(0.2)]
            if delivered and consumer.erased == 3:
                break
        assert (delivered, consumer.erased) == (["other"], 3)
    findings = {one.place: one for one in prove_erased(settings, "acme").findings}
    traces = findings[f"log {TOPIC_TRACE_RECORDED}"]
    assert traces.passed
    assert traces.detail.startswith("3 records no longer delivered")
    assert [one for one in findings.values() if not one.passed] == []
    log.close()


def announcements(log: Any) -> list[TenantErased]:
    """Everything announced."""
    return [decode(record.value or b"", TenantErased) for record in read_all(log, TOPIC_TENANT_ERASED)]


def test_a_database_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """Tenants that existed count as having learnt, for nobody knows; nothing of them is lost."""
    database = Database(f"sqlite:///{tmp_path}/control.db")
    config = Config()
    config.set_main_option("script_location", "controller:migrations")
    with database._writer.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text(
                "INSERT INTO tenants VALUES ('acme', 1.0, 'active', 1, 0, 0, NULL, 1.0, 4, 0.05, 0.01, 3, 2, "
                "1.0, NULL, 1.0)"
            )
        )
        connection.execute(text("INSERT INTO keys VALUES ('k', 'acme', 'aa', 'adp_', 1.0, NULL)"))
    database.migrate()
    with database.read() as session:
        row = session.execute(text("SELECT generation, learned, retention_seconds FROM tenants")).one()
        assert tuple(row) == (0, 1, None)
        assert session.execute(text("SELECT count(*) FROM keys")).scalar() == 1
    with database._writer.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    database.migrate()
    database.close()
