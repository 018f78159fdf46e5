"""Puts a learner together from settings: the one place that knows every part."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import torch

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    DrafterPublished,
    PolicyDecided,
    TenantChanged,
)
from adaptive.lineage import turbo_lineage
from collectors.consumer import TraceConsumer
from collectors.erasure import ErasedTenants
from collectors.open import open_transport
from collectors.state import CompactedView
from collectors.store import TensorStore
from learners.adapters import Champions
from learners.drafter import Recomputer, faster_precision, load_drafter, training_device
from learners.erasure import Forgetting
from learners.features import Assembler
from learners.intake import Intake
from learners.learner import Learner
from learners.ledger import Ledger
from learners.mlflow import MlflowTracker
from learners.mlflow_erasure import MlflowEraser, backend_url
from learners.paths import LearnerPaths, drafter_directories
from learners.plausibility import Plausibility
from learners.publish import VersionPublisher
from learners.replay import Replay
from learners.rerun import rerun
from learners.scheduling import Scheduler
from learners.scoring import ArmScores
from learners.step_costs import StepCosts
from learners.updates import Updater

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event

    from adaptive.settings import Settings
    from learners.manifest import Manifest
    from learners.rerun import Progress, Rerun

GROUP: Final = "learners"


def build_learner(settings: Settings, stop: Event) -> tuple[Learner, Callable[[], None]]:
    """Build a learner and what closes it.

    Args:
        settings: Of this installation.
        stop: Ends the learner's `run` when set.

    Raises:
        CheckpointError: target or turbo is missing or unusable.
        TransportError, StoreError: log or store cannot be used.
    """
    torch.set_num_threads(settings.learner_threads)
    paths = LearnerPaths(settings.home)
    target_directory, turbo_directory = drafter_directories(settings)
    lineage = turbo_lineage(turbo_directory)
    device = training_device()
    drafter = load_drafter(target_directory, turbo_directory, faster_precision(device), device)
    config = drafter.head.config
    store = TensorStore(settings.resolved_store_url)
    transport = open_transport(settings.resolved_log_url, kafka=settings)
    ledger = Ledger(paths.ledger)
    replay = Replay(paths.replay)
    tenants = CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged)
    policies = CompactedView(transport, TOPIC_POLICY_DECIDED, PolicyDecided)
    published = CompactedView(transport, TOPIC_DRAFTER_PUBLISHED, DrafterPublished)
    erased = ErasedTenants(transport)
    traces = TraceConsumer(transport, GROUP, erased=erased)
    recompute = Recomputer(drafter) if settings.features == "recomputed" else None
    tracker = MlflowTracker(
        settings.resolved_tracking_url, settings.home / "mlartifacts", drafter.target_name, ledger.ledger_id
    )
    intake = Intake(
        traces,
        tenants,
        ledger,
        replay,
        Assembler(store, config.feature_layers, config.target_hidden_size, recompute),
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
            store,
            paths.champions,
            config,
            target_sha256=drafter.target_sha256,
            turbo_sha256=drafter.turbo_sha256,
        ),
        policies=policies,
        published=published,
        publisher=VersionPublisher(store, transport, lineage=lineage),
        erased=erased,
        tracker=tracker,
        scores=ArmScores(transport),
        directory=paths.updates,
    )
    learner = Learner(
        settings,
        ledger=ledger,
        replay=replay,
        intake=intake,
        tenants=tenants,
        policies=policies,
        updater=updater,
        marks=tracker,
        scheduler=Scheduler(settings, ledger, StepCosts(transport), time.time),
        forgetting=Forgetting(
            erased,
            tenants,
            ledger,
            replay,
            paths,
            MlflowEraser(
                settings.resolved_tracking_url, backend_url(settings), settings.home / "mlartifacts"
            ),
            transport,
            turbo=(drafter.turbo_sha256, lineage),
        ),
        feature_source=drafter.source,
        pause_file=paths.pause,
        stop=stop,
    )

    def close() -> None:
        for part in (intake, tenants, policies, published, erased, transport, ledger):
            part.close()

    return learner, close


def run_again(settings: Settings, manifest: Manifest, directory: Path, progress: Progress) -> Rerun:
    """Run an update again on this installation's log, store and models; see `learners.rerun`.

    Args:
        settings: Of this installation.
        manifest: Of the update.
        directory: Empty; receives the adapter, `adapter.safetensors`.
        progress: Told how far it is.

    Raises:
        RerunError: what the update was made of is gone or has changed.
        CheckpointError: target or turbo is missing or unusable.
        TransportError, StoreError: log or store cannot be used.
    """
    torch.set_num_threads(manifest.environment.threads)
    drafter = load_drafter(*drafter_directories(settings), manifest.plan.precision, training_device())
    config = drafter.head.config
    store = TensorStore(settings.resolved_store_url)
    recompute = Recomputer(drafter) if manifest.features == "recomputed" else None
    champions = Champions(
        store,
        directory / "champions",
        config,
        target_sha256=drafter.target_sha256,
        turbo_sha256=drafter.turbo_sha256,
    )
    transport = open_transport(settings.resolved_log_url, kafka=settings)
    try:
        return rerun(
            manifest,
            transport=transport,
            drafter=drafter,
            assembler=Assembler(store, config.feature_layers, config.target_hidden_size, recompute),
            champions=champions,
            directory=directory,
            progress=progress,
        )
    finally:
        transport.close()
