"""`adaptive control` as a process: killed, restarted, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from adaptive.contracts import (
    TOPIC_ARM_SCORED,
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_ENGINE_TELEMETRY,
    TOPIC_POLICY_DECIDED,
    AdapterReference,
    Arm,
    ArmCounters,
    ArmScore,
    ArmScored,
    DrafterPublished,
    EngineTelemetry,
    HoldoutScore,
    PolicyDecided,
    encode,
)
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.state import CompactedView
from deploy.kafka.broker import free_port
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectors.transport import Transport


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of an empty home and a free port."""
    return Settings(home=tmp_path / "home", control_port=free_port(), admin_key="adm_test")


@pytest.fixture
def transport(settings: Settings) -> Iterator[Transport]:
    """The log of the same home."""
    settings.home.mkdir()
    opened = open_transport(settings.resolved_log_url)
    yield opened
    opened.close()


@contextmanager
def controller(
    settings: Settings, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run a controller until it is ready; kill it at the end if it still runs."""
    variables = os.environ | {"ADAPTIVE_ADMIN_KEY": "adm_test"} | environment
    command = [sys.executable, "-m", "adaptive.cli", "control", "--home", str(settings.home)]
    with (
        subprocess.Popen(
            [*command, "--control-port", str(settings.control_port)],
            env=variables,
            cwd=settings.home,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        httpx.Client(
            base_url=f"http://127.0.0.1:{settings.control_port}",
            headers={"Authorization": "Bearer adm_test"},
            trust_env=False,
        ) as client,
    ):

        def ready() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            try:
                return client.get("/readyz").is_success
            except httpx.TransportError:
                return False

        try:
            eventually(ready)
            yield process, client
        finally:
            process.kill()


def published(version: int) -> bytes:
    """A version that passed the gate."""
    score = HoldoutScore(tau=2.0, acceptance_per_position=[0.6], verify_steps=9, requests=3)
    adapter = AdapterReference("acme", version, f"file:///{version}", "a" * 64, "b" * 64, "c" * 64, 32)
    return encode(
        DrafterPublished(adapter, 1.0, score, score, None, 0.01, 0.05, 100, 1.0, "run", {0: 0}, {0: 1})
    )


def telemetry(steps: int) -> bytes:
    """Totals of an engine's turbo arm."""
    counters = ArmCounters("acme", Arm.TURBO, 0, requests=1, verify_steps=steps, emitted=steps)
    return encode(EngineTelemetry("engine", 1.0, 1.0 + steps, "t", "d", [counters], [], {}, {}, []))


def policy(transport: Transport) -> PolicyDecided | None:
    """What engines obey at the moment."""
    with CompactedView(transport, TOPIC_POLICY_DECIDED, PolicyDecided) as view:
        view.poll()
        return view.latest.get("acme")


def test_a_killed_controller_forgets_nothing_and_misses_nothing(
    settings: Settings, transport: Transport
) -> None:
    """The policy stays in the log while it is away; afterwards it takes over what came meanwhile, once."""
    with controller(settings) as (process, client):
        client.post("/v1/tenants", json={"id": "acme", "learn": True}).raise_for_status()
        transport.send(TOPIC_DRAFTER_PUBLISHED, "acme", published(1))
        transport.send(TOPIC_ENGINE_TELEMETRY, "engine", telemetry(10))
        eventually(lambda: client.get("/v1/tenants/acme").json()["arms"])
        eventually(lambda: client.get("/v1/tenants/acme").json()["champion"] == 1)
        key = client.post("/v1/tenants/acme/keys").json()["id"]
        # The outbox is sent in the background: on a busy machine a decision may not have left yet.
        eventually(lambda: policy(transport))
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = policy(transport)
    assert left is not None
    transport.send(TOPIC_DRAFTER_PUBLISHED, "acme", published(2))
    transport.send(TOPIC_ENGINE_TELEMETRY, "engine", telemetry(10))
    transport.send(TOPIC_ENGINE_TELEMETRY, "engine", telemetry(25))
    with controller(settings) as (_, client):
        eventually(lambda: client.get("/v1/tenants/acme").json()["champion"] == 2)
        eventually(lambda: client.get("/v1/tenants/acme").json()["arms"][0]["verify_steps"] == 25)
        assert [item["id"] for item in client.get("/v1/tenants/acme/keys").json()["data"]] == [key]
        kinds = [item["kind"] for item in client.get("/v1/tenants/acme/decisions").json()["data"]]
        assert kinds == ["promote", "promote", "create"]
        eventually(lambda: (policy(transport) or left).policy_version == 3)
    current = policy(transport)
    assert current is not None
    assert current.champion is not None
    assert current.champion.version == 2


def traffic(rounds: int) -> bytes:
    """Totals of an engine on which version 1, on trial, accepts more than turbo, after so many reports."""
    sums = ((Arm.ADAPTER, 1, 400, 1.8), (Arm.TURBO, 0, 1200, 1.2))
    counters = [
        ArmCounters(
            *("acme", arm, version, 20 * rounds, steps * rounds, 4 * steps * rounds),
            accepted := int(steps * rounds * per_step),
            [min(accepted, steps * rounds), max(accepted - steps * rounds, 0)],
            steps * rounds + accepted,
            steps * rounds / 20,
        )
        for arm, version, steps, per_step in sums
    ]
    now = time.time() + 5.0 * rounds
    return encode(EngineTelemetry("engine", 1.0, now, "t", "d", counters, [], {}, {}, []))


def test_a_killed_controller_goes_on_with_a_rollout(settings: Settings, transport: Transport) -> None:
    """Its successor takes the canary from the database and makes it champion by traffic alone."""
    scores = [ArmScore(Arm.TURBO, 0, 30, 120, 30), ArmScore(Arm.ADAPTER, 1, 20, 80, 40)]
    with controller(settings, ADAPTIVE_CANARY_SHARE="0.25") as (process, client):
        client.post("/v1/tenants", json={"id": "acme", "learn": True}).raise_for_status()
        transport.send(TOPIC_DRAFTER_PUBLISHED, "acme", published(1))
        eventually(lambda: client.get("/v1/tenants/acme/versions").json()["data"])
        for number in range(30):
            scored = ArmScored("acme", f"r{number}:0", 1.0, "t", "d", 9, 4, scores)
            transport.send(TOPIC_ARM_SCORED, "acme", encode(scored))
        eventually(lambda: (on_trial := policy(transport)) and on_trial.challenger)
        process.send_signal(signal.SIGKILL)
        process.wait()
    on_trial = policy(transport)
    assert on_trial is not None
    assert on_trial.challenger is not None
    assert (on_trial.challenger.version, on_trial.canary_share, on_trial.champion) == (1, 0.25, None)
    for rounds in range(1, 30):
        transport.send(TOPIC_ENGINE_TELEMETRY, "engine", traffic(rounds))
    with controller(settings, ADAPTIVE_CANARY_SHARE="0.25") as (_, client):
        eventually(lambda: client.get("/v1/tenants/acme").json()["champion"] == 1)
        kinds = [item["kind"] for item in client.get("/v1/tenants/acme/decisions").json()["data"]]
        assert kinds == ["promote", "rollout", "rollout", "create"]
        eventually(lambda: (serving := policy(transport)) and serving.champion)
    serving = policy(transport)
    assert serving is not None
    assert serving.challenger is None


def test_sigterm_ends_it_cleanly_and_hands_the_log_over(settings: Settings, transport: Transport) -> None:
    """It exits with 0, and its successor works at once instead of waiting for leases."""
    with controller(settings) as (process, client):
        client.post("/v1/tenants", json={"id": "acme"}).raise_for_status()
        process.terminate()
        assert process.wait(10) == 0
    assert policy(transport) is not None
    with controller(settings) as (_, client):
        transport.send(TOPIC_DRAFTER_PUBLISHED, "acme", published(1))
        eventually(lambda: client.get("/v1/tenants/acme").json()["champion"] == 1, 5)


def test_a_taken_port_ends_it_with_a_message(settings: Settings) -> None:
    """Exit code 1 and the address in the message."""
    settings.home.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.control_port))
        taken.listen()
        command = [sys.executable, "-m", "adaptive.cli", "control", "--home", str(settings.home)]
        result = subprocess.run(
            [*command, "--control-port", str(settings.control_port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=settings.home,
        )
    assert result.returncode == 1
    assert str(settings.control_port) in result.stderr
    assert "Traceback" not in result.stderr
