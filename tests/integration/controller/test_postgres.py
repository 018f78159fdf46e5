"""The controller on a real PostgreSQL: schema, two controllers on one database, a server that goes away."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from fastapi.testclient import TestClient
from sqlalchemy import text

from adaptive.contracts import TOPIC_DRAFTER_PUBLISHED, encode
from adaptive.settings import Settings
from collectors.open import open_transport
from controller import lease, workers
from controller.app import create_app
from controller.database import Database
from controller.lease import LeaseLostError
from controller.models import Base
from tests.postgres_server import running_postgres
from tests.unit.controller.conftest import published

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from controller.context import Control
    from tests.postgres_server import PostgresServer

KEY = "adm_postgres"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server for the module."""
    with running_postgres() as running:
        yield running


@pytest.fixture
def settings(server: PostgresServer, tmp_path: Path) -> Settings:
    """An empty schema on the server."""
    database = Database(server.url)
    with database.write() as session:
        session.execute(text("DROP SCHEMA public CASCADE"))
        session.execute(text("CREATE SCHEMA public"))
    database.close()
    return Settings(home=tmp_path, database_url=server.url, admin_key=KEY)


@pytest.fixture
def two(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestClient, TestClient]]:
    """Two controllers on one database and one log, whose workers run when the test says so."""
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.0)
    apps = [create_app(settings) for _ in range(2)]
    first, second = (
        TestClient(app, headers={"Authorization": f"Bearer {KEY}"}, raise_server_exceptions=False)
        for app in apps
    )
    yield first, second
    for app in apps:
        app.state.control.policy.reset()
        app.state.control.database.close()


def control(client: TestClient) -> Control:
    """The parts of a controller."""
    parts: Control = client.app.state.control  # type: ignore[attr-defined]  # FastAPI's
    return parts


def test_the_migrated_schema_is_the_models(settings: Settings) -> None:
    """Nothing differs on PostgreSQL either, and a second run changes nothing."""
    database = Database(settings.resolved_database_url)
    database.migrate()
    database.migrate()
    with database._engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    database.close()


def test_controllers_that_start_at_once_migrate_once(settings: Settings) -> None:
    """Each waits for the other's migration and finds it done."""
    databases = [Database(settings.resolved_database_url) for _ in range(3)]
    failures: list[Exception] = []

    def migrate(database: Database) -> None:
        try:
            database.migrate()
        except Exception as error:  # noqa: BLE001  any failure fails the test
            failures.append(error)

    threads = [threading.Thread(target=migrate, args=[database]) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for database in databases:
        database.close()
    assert failures == []


def test_a_tenant_lives_on_either_controller(two: tuple[TestClient, TestClient]) -> None:
    """What one writes the other shows; ids that PostgreSQL itself would fail on are 404s."""
    first, second = two
    assert first.post("/v1/tenants", json={"id": "acme", "learn": True}).status_code == 201
    key = second.post("/v1/tenants/acme/keys", headers={"Idempotency-Key": "k"}).json()
    assert first.post("/v1/tenants/acme/keys", headers={"Idempotency-Key": "k"}).json()["id"] == key["id"]
    tag = first.get("/v1/tenants/acme").headers["etag"]
    assert second.patch("/v1/tenants/acme", json={"freeze": True}, headers={"If-Match": tag}).is_success
    assert first.patch("/v1/tenants/acme", json={}, headers={"If-Match": tag}).status_code == 412
    assert first.get("/v1/tenants/acme%00").status_code == 404
    assert len(first.get("/v1/tenants/acme/decisions").json()["data"]) == 2
    assert "adaptive_control_tenants 1.0" in first.get("/metrics").text
    assert second.delete("/v1/tenants/acme").status_code == 202
    assert first.get("/v1/tenants/acme").status_code == 404


def test_two_controllers_never_act_twice(
    two: tuple[TestClient, TestClient], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One leads; what it began when it lost the lease is rolled back, and the other does it once."""
    first, second = two
    first.post("/v1/tenants", json={"id": "acme", "learn": True})
    assert control(first).lease.hold()
    assert not control(second).lease.hold()
    with pytest.raises(LeaseLostError):
        control(second).policy.round()  # a worker that would act without asking is fenced off
    control(second).policy.reset()
    transport = open_transport(settings.resolved_log_url)
    transport.send(TOPIC_DRAFTER_PUBLISHED, "acme", encode(published(1)))
    transport.close()
    # The leader is stopped in the middle of its round; the other takes over; the first goes on too late.
    take_over = control(first).policy._take_over

    def late(received: Any) -> None:
        monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
        assert control(second).lease.hold() or control(second).lease.hold()
        take_over(received)

    monkeypatch.setattr(control(first).policy, "_take_over", late)
    with pytest.raises(LeaseLostError):
        control(first).policy.round()
    control(first).policy.reset()
    assert first.get("/v1/tenants/acme").json()["champion"] is None
    control(second).policy.round()
    shown = first.get("/v1/tenants/acme").json()
    assert (shown["champion"], shown["policy_version"]) == (1, 2)
    kinds = [item["kind"] for item in first.get("/v1/tenants/acme/decisions").json()["data"]]
    assert kinds == ["promote", "create"]


def test_a_database_that_goes_away_is_a_503_until_it_is_back(
    two: tuple[TestClient, TestClient], server: PostgresServer
) -> None:
    """Every route says what to look at and when to come back; nothing has to be restarted."""
    first, _ = two
    first.post("/v1/tenants", json={"id": "acme"})
    server.stop()
    try:
        for method, path in (("GET", "/v1/tenants/acme"), ("POST", "/v1/tenants"), ("GET", "/v1/audit")):
            answer = first.request(method, path, json={"id": "new"} if method == "POST" else None)
            assert answer.status_code == 503
            assert "ADAPTIVE_DATABASE_URL" in answer.json()["detail"]
            assert answer.headers["retry-after"] == "2"
        assert first.get("/readyz").status_code == 503
        assert first.get("/healthz").status_code == 200
    finally:
        server.start()
    assert first.get("/v1/tenants/acme").status_code == 200
    assert first.get("/v1/tenants/new").status_code == 404
