"""A controller on files of its own whose workers run only when a test says so."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_ENGINE_TELEMETRY,
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    AdapterReference,
    Arm,
    ArmCounters,
    DrafterPublished,
    EngineTelemetry,
    HoldoutScore,
    PolicyDecided,
    TenantChanged,
    encode,
)
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.state import CompactedView
from controller import lease, workers
from controller.app import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastapi import FastAPI

    from collectors.transport import Transport
    from controller.context import Control

ADMIN_KEY = "adm_test"
START = 1_000_000.0


class Clock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@dataclass
class Bench:
    """A controller with everything a test needs to act as learner, engine and operator."""

    app: FastAPI
    client: TestClient
    transport: Transport
    clock: Clock
    settings: Settings

    @property
    def control(self) -> Control:
        """The controller's parts."""
        control: Control = self.app.state.control
        return control

    def request(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """Call the API as the operator and return the JSON, which must come with `status`."""
        response = self.client.request(method, path, json=body)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def tenant(self, tenant: str = "acme") -> Any:
        """Show a tenant."""
        return self.request("GET", f"/v1/tenants/{tenant}")

    def create(self, tenant: str = "acme") -> None:
        """Make a tenant that learns."""
        self.request("POST", "/v1/tenants", {"id": tenant, "learn": True}, 201)

    def publish(self, version: int, tenant: str = "acme", sha256: str = "a" * 64) -> None:
        """Act as a learner whose gate let a version through, and let the controller see it."""
        self.transport.send(TOPIC_DRAFTER_PUBLISHED, tenant, encode(published(version, tenant, sha256)))
        self.work()

    def report(self, counters: list[ArmCounters], *, engine: str = "engine-1", **fields: Any) -> None:
        """Act as an engine that reports, and let the controller see it."""
        self.transport.send(
            TOPIC_ENGINE_TELEMETRY, engine, encode(telemetry(self.clock.now, counters, engine, **fields))
        )
        self.work()

    def work(self) -> None:
        """Let both workers do what there is to do."""
        lead(self.control)
        self.control.policy.round()
        self.control.relay.round()

    def policies(self) -> dict[str, PolicyDecided]:
        """Read what engines obey."""
        lead(self.control)
        self.control.relay.round()
        with CompactedView(self.transport, TOPIC_POLICY_DECIDED, PolicyDecided) as view:
            view.poll()
            return dict(view.latest)

    def accounts(self) -> dict[str, TenantChanged]:
        """Read what endpoints and learners know of tenants."""
        lead(self.control)
        self.control.relay.round()
        with CompactedView(self.transport, TOPIC_TENANT_CHANGED, TenantChanged) as view:
            view.poll()
            return dict(view.latest)

    def decisions(self, tenant: str = "acme") -> list[Any]:
        """List the decisions about a tenant, newest first."""
        data: list[Any] = self.request("GET", f"/v1/tenants/{tenant}/decisions")["data"]
        return data

    def statuses(self, tenant: str = "acme") -> dict[int, str]:
        """Status of every version of a tenant."""
        data = self.request("GET", f"/v1/tenants/{tenant}/versions")["data"]
        return {item["version"]: item["status"] for item in data}


def lead(control: Control) -> None:
    """Make this controller the one that acts; one that has fallen silent is taken over from."""
    assert control.lease.hold() or control.lease.hold()


def published(version: int, tenant: str = "acme", sha256: str = "a" * 64) -> DrafterPublished:
    """A version that passed the gate."""
    score = HoldoutScore(tau=2.5, acceptance_per_position=[0.7, 0.5], verify_steps=100, requests=10)
    return DrafterPublished(
        adapter=AdapterReference(
            tenant=tenant,
            version=version,
            uri=f"file:///store/{tenant}/{version}.safetensors",
            sha256=sha256,
            target_sha256="b" * 64,
            turbo_sha256="c" * 64,
            rank=32,
        ),
        created_at=START,
        turbo=score,
        challenger=score,
        champion=None,
        gain_lower=0.02,
        gain_upper=0.08,
        tokens_trained=4000,
        training_seconds=12.0,
        mlflow_run_id="run",
        trace_first_offset={0: 0},
        trace_last_offset={0: 9},
    )


def telemetry(
    now: float, counters: list[ArmCounters], engine: str = "engine-1", **fields: Any
) -> EngineTelemetry:
    """A report of an engine that has run since the beginning."""
    values: dict[str, Any] = {
        "engine_id": engine,
        "started_at": START,
        "reported_at": now,
        "target_sha256": "b" * 64,
        "turbo_sha256": "c" * 64,
        "counters": counters,
        "slots": [],
        "acknowledged": {},
        "refused": {},
        "swap_pause_ms": [],
    }
    return EngineTelemetry(**(values | fields))


def counters(arm: Arm, version: int, steps: int, accepted: int, tenant: str = "acme") -> ArmCounters:
    """Totals of an arm in which every accepted draft stood at the first position."""
    return ArmCounters(
        tenant,
        arm,
        version,
        requests=steps // 30,
        verify_steps=steps,
        drafted=4 * steps,
        accepted=accepted,
        accepted_per_position=[accepted, 0],
        emitted=steps + accepted,
        engine_seconds=steps / 20,
    )


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an empty database and log, made once: copying files is quicker than migrating."""
    settings = Settings(home=tmp_path_factory.mktemp("home"), admin_key=ADMIN_KEY)
    create_app(settings).state.control.database.close()
    return settings.home


@pytest.fixture
def bench(new_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A controller whose database and log are new."""
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
    shutil.copytree(new_home, tmp_path, dirs_exist_ok=True)
    settings = Settings(home=tmp_path, admin_key=ADMIN_KEY)
    clock = Clock()
    app = create_app(settings, clock)
    client = TestClient(app, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, raise_server_exceptions=False)
    transport = open_transport(settings.resolved_log_url)
    bench = Bench(app, client, transport, clock, settings)
    lead(bench.control)
    yield bench
    bench.control.policy.reset()
    transport.close()
    bench.control.database.close()
