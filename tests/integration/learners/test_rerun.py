"""An update run again from the log: the same bytes, or a clear reason why not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from adaptive.cli.main import app
from adaptive.contracts import (
    TOPIC_TENANT_CHANGED,
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    TenantChanged,
    TenantErased,
    TenantState,
    encode,
)
from collectors.erasure import watermarks
from collectors.open import open_transport
from collectors.sqlite import SqliteTransport
from learners.assembly import run_again
from learners.manifest import Manifest, write_manifest
from learners.mlflow import MlflowTracker
from learners.rerun import Rerun, RerunError
from learners.testing import TinyTenant, make_models
from tests.integration.learners.conftest import Installation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from adaptive.settings import Settings
    from learners.testing import TinyModels

# MLflow 3.17 builds its tables with an option that SQLAlchemy 2.1 deprecates; we cannot change that.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


@pytest.fixture(scope="module")
def past(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Two updates, the second warm-started, amid another tenant's traffic, duplicates and junk.

    Ledger and replay of then are gone.
    """
    made = Installation(tmp_path_factory.mktemp("past"), models)
    made.tenant("acme")
    acme, other = (TinyTenant(models, made.store, name) for name in ("acme", "other"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("learners.learner.POLL_SECONDS", 0.01)
        learner = made.learner()
        made.traffic(acme, 28)
        learner.turn()
        made.promote(made.published()[0], weight=0.5)
        again = acme.request(segments=2)
        made.send([again[1], again[0], again[1]])
        made.transport.send(TOPIC_TRACE_RECORDED, "acme", b"\xc1")
        made.traffic(other, 5)
        made.traffic(acme, 28)
        learner.turn()
    assert len(made.tracker.manifests) == 2
    shutil.rmtree(made.paths.root)
    yield made
    made.transport.close()


@pytest.fixture
def log_copy(past: Installation, tmp_path: Path) -> Settings:
    """Settings with a copy of the log, for tests that change it."""
    with (
        contextlib.closing(sqlite3.connect(past.settings.home / "log.db")) as source,
        contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as copy,
    ):
        source.backup(copy)
    return past.settings.model_copy(update={"log_url": f"sqlite:///{tmp_path}/log.db"})


def again(settings: Settings, manifest: Manifest, directory: Path) -> Rerun:
    """Run an update again."""
    return run_again(settings, manifest, directory, lambda *_: None)


def test_a_warm_started_update_gives_the_same_bytes_and_scores(past: Installation, tmp_path: Path) -> None:
    """From manifest, log and store alone; the first run went into MLflow under the same checksum."""
    update, manifest = past.tracker.recorded[1], past.tracker.manifests[1]
    assert manifest.warm_started
    assert manifest.champion is not None
    assert manifest.champion_weight == 0.5
    result = again(past.settings, manifest, tmp_path)
    assert result.differences == []
    assert result.same_adapter
    assert result.same_scores
    assert update.report is not None
    assert result.adapter_sha256 == update.report.adapter_sha256
    assert hashlib.sha256(result.adapter.read_bytes()).hexdigest() == update.report.adapter_sha256
    assert result.judgement.champion is not None


def test_another_seed_gives_other_bytes(past: Installation, tmp_path: Path) -> None:
    """The comparison is a real one: a different plan does not compare equal."""
    manifest = past.tracker.manifests[0]
    plan = msgspec.structs.replace(manifest.plan, seed=manifest.plan.seed + 1)
    result = again(past.settings, msgspec.structs.replace(manifest, plan=plan), tmp_path)
    assert not result.same_adapter
    assert not result.same_scores


def test_the_command_reruns_a_run_of_mlflow(models: TinyModels, tmp_path: Path) -> None:
    """`adaptive drafters rerun RUN_ID` finds the manifest in MLflow, and says that the bytes are the same."""
    made = Installation(tmp_path / "home", models)
    made.tenant("acme")
    url = made.settings.resolved_tracking_url
    tracker = MlflowTracker(url, tmp_path / "home" / "mlartifacts", "tiny", "ledger")
    made.tracker = tracker  # type: ignore[assignment]  # the real one, here only
    made.traffic(TinyTenant(models, made.store, "acme"), 28)
    made.learner().turn()
    made.transport.close()
    (published,) = _published_runs(made)
    flags = ["--home", str(made.settings.home), "--model", made.settings.model, "--turbo", str(models.turbo)]
    found = tmp_path / "found.safetensors"
    result = CliRunner().invoke(
        app, ["drafters", "rerun", published, *flags, "--json", "--output", str(found)], env={"TERM": "dumb"}
    )
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["same_adapter"]
    assert said["same_scores"]
    assert hashlib.sha256(found.read_bytes()).hexdigest() == said["expected_sha256"]
    missing = CliRunner().invoke(app, ["drafters", "rerun", "0" * 32, *flags], env={"TERM": "dumb"})
    assert missing.exit_code == 1
    assert "MLFLOW_TRACKING_URI" in missing.stderr


def _published_runs(made: Installation) -> list[str]:
    transport = open_transport(made.settings.resolved_log_url)
    made.transport = transport
    runs = [message.mlflow_run_id for message in made.published()]
    transport.close()
    return runs


def test_the_command_says_when_bytes_differ(past: Installation, tmp_path: Path) -> None:
    """Exit code 1, both checksums, and how the environment differs."""
    manifest = past.tracker.manifests[0]
    environment = msgspec.structs.replace(manifest.environment, cpu="ANOTHER")
    file = tmp_path / "update.json"
    write_manifest(file, msgspec.structs.replace(manifest, adapter_sha256="0" * 64, environment=environment))
    flags = ["--home", str(past.settings.home), "--model", past.settings.model]
    result = CliRunner().invoke(
        app,
        ["drafters", "rerun", "--manifest", str(file), *flags, "--turbo", str(past.models.turbo)],
        env={"TERM": "dumb"},
    )
    assert result.exit_code == 1
    assert manifest.adapter_sha256 in result.stdout
    assert "not ANOTHER" in result.stderr


def test_a_tenant_who_declines_learning_is_not_trained_on(
    past: Installation, log_copy: Settings, tmp_path: Path
) -> None:
    """Consent of today counts, and the field to change is named."""
    account = TenantChanged(
        "acme", 99, TenantState.ACTIVE, [], learn=False, share=False, freeze=False, changed_at=0.0
    )
    _send(log_copy, TOPIC_TENANT_CHANGED, encode(account))
    with pytest.raises(RerunError, match="learn is off for tenant acme"):
        again(log_copy, past.tracker.manifests[0], tmp_path)


@pytest.mark.parametrize("by", ["watermark", "generation"])
def test_an_erased_tenant_is_not_trained_on(
    past: Installation, log_copy: Settings, tmp_path: Path, by: str
) -> None:
    """Whether by a watermark above its traces or by their generation."""
    transport = open_transport(log_copy.resolved_log_url)
    marks = watermarks(transport, [TOPIC_TRACE_RECORDED]) if by == "watermark" else []
    transport.close()
    erased = TenantErased(
        "acme", "e", generation=0 if by == "generation" else -1, erased_at=0.0, watermarks=marks
    )
    _send(log_copy, TOPIC_TENANT_ERASED, encode(erased))
    with pytest.raises(RerunError, match="tenant acme was erased"):
        again(log_copy, past.tracker.manifests[0], tmp_path)


def test_traces_past_their_retention_are_named(
    past: Installation, log_copy: Settings, tmp_path: Path
) -> None:
    """The offsets that are gone and those that are left are in the message."""
    log = SqliteTransport(tmp_path / "log.db", clock=lambda: time.time() + 30 * 86_400)
    log.enforce_retention()
    log.close()
    with pytest.raises(RerunError, match=r"have left the log: offsets \d+ to \d+ of partition"):
        again(log_copy, past.tracker.manifests[0], tmp_path)


def test_another_log_is_recognised(past: Installation, log_copy: Settings, tmp_path: Path) -> None:
    """Traces that lie at the offsets but are not the update's are never trained on."""
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        connection.execute(
            "DELETE FROM record WHERE key = 'acme' AND offset % 2 = 0 AND part_id IN (SELECT part.id "
            "FROM part JOIN topic ON topic.id = topic_id WHERE name = ?)",
            (TOPIC_TRACE_RECORDED,),
        )
        connection.commit()
    with pytest.raises(RerunError, match="is not in this log"):
        again(log_copy, past.tracker.manifests[0], tmp_path)


def test_missing_features_and_adapters_are_named(past: Installation, tmp_path: Path) -> None:
    """Features that retention removed, and a warm start that is gone, end the rerun by name."""
    store = past.settings.home / "store"
    empty = past.settings.model_copy(update={"store_url": store.as_uri()})
    store.rename(store.with_name("away"))
    try:
        with pytest.raises(RerunError, match="missing_features"):
            again(empty, past.tracker.manifests[0], tmp_path)
        with pytest.raises(RerunError, match=r"warm start: acme@1.*ADAPTIVE_STORE_URL"):
            again(empty, past.tracker.manifests[1], tmp_path)
    finally:
        store.with_name("away").rename(store)


def test_another_turbo_is_refused(past: Installation, tmp_path: Path) -> None:
    """The setting that names turbo is in the message."""
    other = make_models(tmp_path / "other", seed=1)
    settings = past.settings.model_copy(update={"turbo": other.turbo})
    with pytest.raises(RerunError, match=r"turbo: .*ADAPTIVE_TURBO"):
        again(settings, past.tracker.manifests[0], tmp_path)


def test_other_features_than_then_are_refused(past: Installation, tmp_path: Path) -> None:
    """A sequence whose bytes are not those of then is not trained on, whatever the reason."""
    manifest = past.tracker.manifests[0]
    first = msgspec.structs.replace(manifest.training[0], sha256="0" * 64)
    changed = msgspec.structs.replace(manifest, training=[first, *manifest.training[1:]])
    with pytest.raises(RerunError, match="is not what the update saw"):
        again(past.settings, changed, tmp_path)


def _send(settings: Settings, topic: str, value: bytes) -> None:
    transport = open_transport(settings.resolved_log_url)
    transport.send(topic, "acme", value)
    transport.close()
