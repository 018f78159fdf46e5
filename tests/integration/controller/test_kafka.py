"""The controller on a Kafka log: accounts go out, telemetry and published versions come in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi.testclient import TestClient

from adaptive.contracts import (
    TOPIC_ENGINE_TELEMETRY,
    TOPIC_TENANT_CHANGED,
    EngineTelemetry,
    TenantChanged,
    encode,
)
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.state import CompactedView
from controller.app import create_app
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_accounts_and_telemetry_travel_over_kafka(kafka_url: str, tmp_path: Path) -> None:
    """A tenant made by the admin API reaches a compacted view; an engine's report reaches the admin API."""
    settings = Settings(home=tmp_path, log_url=kafka_url, admin_key="key")
    transport = open_transport(kafka_url)
    headers = {"authorization": "Bearer key"}
    with TestClient(create_app(settings), headers=headers) as client:
        assert client.post("/v1/tenants", json={"id": "acme", "learn": True}).status_code == 201
        with CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged) as view:
            eventually(lambda: view.poll(0.1) or "acme" in view.latest)
            assert view.latest["acme"].learn
        now = time.time()
        report = EngineTelemetry("engine-1", now, now, "t", "u", [], [], {}, {}, [])
        transport.send(TOPIC_ENGINE_TELEMETRY, "engine-1", encode(report))
        eventually(lambda: "engine-1" in client.get("/v1/engines").text)
    transport.close()
