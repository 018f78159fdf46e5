"""`adaptive learn` on real Ray, MLflow, log and store: killed in mid-training, stopped by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from threading import Event
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # ships no types
import pytest
from mlflow import MlflowClient

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_TENANT_CHANGED,
    TOPIC_TRACE_RECORDED,
    DrafterPublished,
    TenantChanged,
    TenantState,
    encode,
)
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.state import CompactedView
from collectors.store import TensorStore
from learners.assembly import build_learner
from learners.ledger import Ledger
from learners.paths import LearnerPaths
from learners.status import LearnerStatus, read_status
from learners.testing import TinyModels, TinyTenant
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# MLflow 3.17 builds its tables with an option that SQLAlchemy 2.1 deprecates; we cannot change that.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")

REQUESTS = 40
PROGRAM = """
import pathlib, sys
from adaptive.settings import Settings
from learners.app import run

run(Settings.model_validate_json(sys.argv[1]))
"""


def prepare(home: Path, models: TinyModels) -> Settings:
    """An installation with the traffic of one tenant in its log."""
    settings = Settings(
        home=home,
        model=str(models.target),
        turbo=models.turbo,
        rank=8,
        update_tokens=REQUESTS * 40,
        update_token_steps=12_000,
        learning_rate=1e-2,
        unroll_depth=4,
    )
    transport = open_transport(settings.resolved_log_url)
    account = TenantChanged(
        "acme", 1, TenantState.ACTIVE, [], learn=True, share=False, freeze=False, changed_at=0.0
    )
    transport.send(TOPIC_TENANT_CHANGED, "acme", encode(account))
    tenant = TinyTenant(models, TensorStore(settings.resolved_store_url), "acme")
    for number in range(REQUESTS):
        for record in tenant.request(segments=1 + number % 2):
            transport.send(TOPIC_TRACE_RECORDED, "acme", encode(record))
    transport.close()
    return settings


def published(settings: Settings) -> DrafterPublished | None:
    """The version that the learner announced."""
    transport = open_transport(settings.resolved_log_url)
    with CompactedView(transport, TOPIC_DRAFTER_PUBLISHED, DrafterPublished) as view:
        view.poll()
        message = view.latest.get("acme")
    transport.close()
    return message


def status_of(settings: Settings) -> LearnerStatus:
    """The status file, or a blank one."""
    return read_status(LearnerPaths(settings.home).status) or LearnerStatus("missing", 0.0)


@pytest.fixture
def learning(tmp_path: Path, models: TinyModels) -> Iterator[tuple[Settings, subprocess.Popen[bytes]]]:
    """`adaptive learn` as a process of its own, started on waiting traffic."""
    settings = prepare(tmp_path / "home", models)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, settings.model_dump_json()], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    family: list[psutil.Process] = []
    try:
        yield settings, process
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    finally:
        process.kill()
        process.wait()
        for member in family:
            if member.is_running():
                member.kill()


def test_a_learner_killed_in_mid_training_resumes_and_publishes_what_it_would_have(
    learning: tuple[Settings, subprocess.Popen[bytes]], tmp_path: Path, models: TinyModels
) -> None:
    """SIGKILL after a checkpoint: Ray restarts the actor, training goes on, no trace counts twice.

    What is published has the bytes of a learner that nobody killed.

    Meanwhile nothing listens beyond loopback and the learner has lowered its priority; afterwards SIGTERM
    ends everything, leaving no process behind.
    """
    settings, process = learning
    paths = LearnerPaths(settings.home)
    eventually(lambda: status_of(settings).state == "running", 120, "the first report")
    eventually(lambda: any(paths.updates.glob("*.checkpoint")), 120, "the first checkpoint")
    first = status_of(settings).pid
    os.kill(first, signal.SIGKILL)
    assert published(settings) is None

    def has_version() -> bool:
        tenant = status_of(settings).tenants.get("acme")
        return tenant is not None and bool(tenant.versions)

    eventually(has_version, 120, "a version")
    family = psutil.Process(process.pid).children(recursive=True)
    listening = {
        connection.laddr.ip
        for member in family
        for connection in member.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    status = status_of(settings)
    assert status.pid != first
    assert status.restarts == 1
    assert (status.tenants["acme"].requests, status.tenants["acme"].tokens_seen) == (REQUESTS, REQUESTS * 40)
    assert psutil.Process(status.pid).nice() >= settings.learner_niceness
    assert "training goes on from its checkpoint" in paths.log.read_text()
    ledger = Ledger(paths.ledger)
    (update,) = ledger.updates("acme")
    ledger.close()
    message = published(settings)
    assert message is not None
    assert message.challenger.tau > message.turbo.tau
    assert message.gain_lower > 0

    client = MlflowClient(settings.resolved_tracking_url, settings.resolved_tracking_url)
    assert client.get_run(message.mlflow_run_id).data.params["seed"] == str(update.plan.seed)
    assert (
        client.get_model_version_by_alias("drafter.tiny.acme", "challenger").run_id == message.mlflow_run_id
    )

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert status_of(settings).state == "stopped"
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []

    alone = prepare(tmp_path / "alone", models)
    learner, close = build_learner(alone, Event())
    learner.turn()
    close()
    undisturbed = published(alone)
    assert undisturbed is not None
    assert undisturbed.adapter.sha256 == message.adapter.sha256
