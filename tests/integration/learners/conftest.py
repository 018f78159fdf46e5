"""A tiny installation: models, log, store and a learner of real parts with a tracker that only remembers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

import pytest
import torch

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    TOPIC_TRACE_RECORDED,
    DrafterPublished,
    PolicyDecided,
    TenantChanged,
    TenantState,
    TraceRecord,
    encode,
)
from adaptive.settings import Settings
from collectors.consumer import TraceConsumer
from collectors.open import open_transport
from collectors.state import CompactedView
from collectors.store import TensorStore
from learners.adapters import Champions
from learners.drafter import load_drafter
from learners.features import Assembler
from learners.intake import Intake
from learners.learner import Learner
from learners.ledger import Ledger
from learners.manifest import MANIFEST, Manifest, read_manifest
from learners.mlflow import TrackingError
from learners.paths import LearnerPaths
from learners.plausibility import Plausibility
from learners.publish import VersionPublisher
from learners.replay import Replay
from learners.scheduling import Scheduler
from learners.scoring import ArmScores
from learners.step_costs import StepCosts
from learners.testing import HIDDEN, LAYERS, TinyModels, TinyTenant, make_models
from learners.updates import Updater

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from learners.records import Update


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """A tiny target and turbo."""
    return make_models(tmp_path_factory.mktemp("models"))


@dataclass
class RememberingTracker:
    """Stands for MLflow: remembers what it was told, and can be away."""

    away: bool = False
    recorded: list[Update] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    champions: dict[str, int | None] = field(default_factory=dict)

    def record(self, update: Update, directory: Path) -> str:
        """Remember an update and its manifest."""
        assert (directory / "adapter.safetensors").is_file()
        if self.away:
            raise TrackingError("away")
        self.recorded.append(update)
        self.manifests.append(read_manifest(directory / MANIFEST))
        return f"run-{update.update_id}"

    def mark_champion(self, tenant: str, version: int | None) -> None:
        """Remember a champion."""
        self.champions[tenant] = version


class Installation:
    """Log, store and settings of one test, and the learners that run on them."""

    def __init__(self, home: Path, models: TinyModels, log_url: str | None = None) -> None:
        self.models = models
        self.settings = Settings(
            home=home,
            log_url=log_url,
            model=str(models.target),
            turbo=models.turbo,
            rank=8,
            update_tokens=600,
            update_token_steps=4_000,
            learning_rate=1e-2,
            unroll_depth=2,
        )
        self.paths = LearnerPaths(home)
        self.transport = open_transport(self.settings.resolved_log_url)
        self.store = TensorStore(self.settings.resolved_store_url)
        self.tracker = RememberingTracker()
        self.stop = Event()
        self.revision = 0
        self.open: list[Learner] = []

    def tenant(
        self,
        name: str,
        *,
        learn: bool = True,
        freeze: bool = False,
        retention_seconds: float | None = None,
        retention_bytes: int | None = None,
    ) -> None:
        """Change a tenant's account."""
        self.revision += 1
        account = TenantChanged(
            name,
            self.revision,
            TenantState.ACTIVE,
            [],
            learn=learn,
            share=False,
            freeze=freeze,
            changed_at=0.0,
            retention_seconds=retention_seconds,
            retention_bytes=retention_bytes,
        )
        self.transport.send(TOPIC_TENANT_CHANGED, name, encode(account))

    def promote(self, published: DrafterPublished, weight: float = 1.0) -> None:
        """Let a published version serve."""
        tenant = published.adapter.tenant
        policy = PolicyDecided(
            tenant, published.adapter.version, published.adapter, weight, 4, 0.05, 0.01, "", 0.0
        )
        self.transport.send(TOPIC_POLICY_DECIDED, tenant, encode(policy))

    def send(self, records: Iterable[TraceRecord]) -> None:
        """Append traces to the log."""
        for record in records:
            self.transport.send(TOPIC_TRACE_RECORDED, record.tenant, encode(record))

    def traffic(self, tenant: TinyTenant, requests: int) -> None:
        """Append the traces of a tenant's next requests."""
        for number in range(requests):
            self.send(tenant.request(segments=1 + number % 2))

    def learner(self) -> Learner:
        """A learner on this installation's state, as a new process would build it."""
        settings = self.settings
        drafter = load_drafter(self.models.target, self.models.turbo, "float32")
        ledger, replay = Ledger(self.paths.ledger), Replay(self.paths.replay)
        tenants = CompactedView(self.transport, TOPIC_TENANT_CHANGED, TenantChanged)
        policies = CompactedView(self.transport, TOPIC_POLICY_DECIDED, PolicyDecided)
        intake = Intake(
            TraceConsumer(self.transport, "learners"),
            tenants,
            ledger,
            replay,
            Assembler(self.store, LAYERS, HIDDEN, None),
            target_sha256=drafter.target_sha256,
            feature_source=drafter.source,
            examine=Plausibility(drafter.target_rows, drafter.head.draft_token_ids).check,
        )
        updater = Updater(
            settings,
            drafter=drafter,
            ledger=ledger,
            replay=replay,
            champions=Champions(
                self.store,
                self.paths.champions,
                drafter.head.config,
                target_sha256=drafter.target_sha256,
                turbo_sha256=drafter.turbo_sha256,
            ),
            policies=policies,
            published=CompactedView(self.transport, TOPIC_DRAFTER_PUBLISHED, DrafterPublished),
            publisher=VersionPublisher(self.store, self.transport),
            tracker=self.tracker,
            scores=ArmScores(self.transport),
            directory=self.paths.updates,
        )
        learner = Learner(
            settings,
            ledger=ledger,
            replay=replay,
            intake=intake,
            tenants=tenants,
            policies=policies,
            updater=updater,
            marks=self.tracker,
            scheduler=Scheduler(settings, ledger, StepCosts(self.transport), time.time),
            feature_source=drafter.source,
            pause_file=self.paths.pause,
            stop=self.stop,
        )
        self.open.append(learner)
        return learner

    def published(self) -> list[DrafterPublished]:
        """Announced versions, newest of each tenant."""
        with CompactedView(self.transport, TOPIC_DRAFTER_PUBLISHED, DrafterPublished) as view:
            view.poll()
            return list(view.latest.values())


@pytest.fixture
def installation(
    tmp_path: Path, models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Installation]:
    """A fresh installation; a learner waits for traces for a moment only, and takes in all there are."""
    monkeypatch.setattr("learners.learner.POLL_SECONDS", 0.01)
    monkeypatch.setattr("learners.intake.ASSEMBLY_SECONDS", 60.0)
    made = Installation(tmp_path, models)
    yield made
    made.transport.close()


@pytest.fixture
def acme(installation: Installation) -> TinyTenant:
    """A tenant that consented to learning."""
    installation.tenant("acme")
    return TinyTenant(installation.models, installation.store, "acme")
