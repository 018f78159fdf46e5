"""Updates in a real MLflow on SQLite."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from adaptive.contracts import HoldoutScore
from learners.mlflow import MlflowTracker, TrackingError
from learners.records import Update, UpdatePlan, UpdateReport, UpdateState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# MLflow 3.17 builds its tables with an option that SQLAlchemy 2.1 deprecates; we cannot change that.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tracking URI of one database for all tests here: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The directory of an update's files; the tracker does not look inside."""
    directory = tmp_path / "1"
    directory.mkdir()
    (directory / "adapter.safetensors").write_bytes(b"adapter")
    (directory / "update.json").write_bytes(b"manifest")
    return directory


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory in which nothing may appear."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    yield directory
    assert list(directory.iterdir()) == []


def update(tenant: str, *, publish: bool, version: int = 1) -> Update:
    """An evaluated update."""
    plan = UpdatePlan(
        tenant=tenant,
        ordinal=version,
        version=version,
        seed=17,
        training=(1, 2),
        fresh=(2,),
        holdout=(3,),
        warm_start=None,
        tokens=900,
        token_steps=9000,
        batch_tokens=225,
        learning_rate=7e-4,
        rank=32,
        unroll_depth=4,
        precision="bfloat16",
        target_sha256="t" * 64,
        turbo_sha256="u" * 64,
        traces_until=5.0,
        first_offset={0: 4, 3: 0},
        last_offset={0: 90, 3: 7},
    )
    report = UpdateReport(
        plan=plan,
        publish=publish,
        reason="because",
        turbo=HoldoutScore(2.5, [0.7, 0.5], 100, 12),
        champion=None,
        challenger=HoldoutScore(3.0, [0.8, 0.6], 90, 12),
        champion_version=0,
        gain_estimate=0.2,
        gain_lower=0.1,
        gain_upper=float("inf"),
        losses=[2.0, 1.5, 1.25],
        steps=3,
        training_seconds=12.0,
        evaluation_seconds=2.0,
        evaluated_at=1_000_000.0,
        adapter_sha256="a" * 64,
    )
    return Update(version, UpdateState.EVALUATED, plan, report)


def test_a_published_update_is_one_run_and_one_registered_version(
    database: str, files: Path, tmp_path: Path, working_directory: Path
) -> None:
    """Parameters, loss curve, scores, artifact, model and alias are there; asking again adds nothing."""
    tracker = MlflowTracker(database, tmp_path / "mlartifacts", "tiny", "ledger-a")
    run_id = tracker.record(update("acme", publish=True), files)
    assert tracker.record(update("acme", publish=True), files) == run_id
    client = MlflowClient(database, database)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "17"
    assert json.loads(run.data.params["trace_last_offset"]) == {"0": 90, "3": 7}
    assert run.data.metrics["holdout.tau.challenger"] == 3.0
    assert run.data.metrics["gain.lower"] == 0.1
    assert [point.value for point in client.get_metric_history(run_id, "training.loss")] == [2.0, 1.5, 1.25]
    positions = client.get_metric_history(run_id, "holdout.acceptance.turbo")
    assert [(point.step, point.value) for point in positions] == [(1, 0.7), (2, 0.5)]
    version = client.get_model_version_by_alias("drafter.tiny.acme", "challenger")
    assert version.run_id == run_id
    assert version.tags["adaptive.version"] == "1"
    assert (
        tmp_path / "mlartifacts" / run_id / "artifacts" / "adapter.safetensors"
    ).read_bytes() == b"adapter"
    assert tracker.artifact(run_id, "update.json", tmp_path).read_bytes() == b"manifest"
    with pytest.raises(TrackingError, match=r"no file other\.json"):
        tracker.artifact(run_id, "other.json", tmp_path)
    assert len(client.search_model_versions("name = 'drafter.tiny.acme'")) == 1
    assert working_directory.is_dir()


def test_a_refused_update_is_a_run_and_no_version(database: str, files: Path, tmp_path: Path) -> None:
    """A refusal can be looked up with its reason and numbers; the registry does not know it."""
    tracker = MlflowTracker(database, tmp_path / "mlartifacts", "tiny", "ledger-b")
    run_id = tracker.record(update("refused", publish=False), files)
    client = MlflowClient(database, database)
    tags = client.get_run(run_id).data.tags
    assert (tags["adaptive.verdict"], tags["adaptive.reason"]) == ("refused", "because")
    assert client.search_registered_models(filter_string="name = 'drafter.tiny.refused'") == []


def test_the_champion_alias_moves_and_goes(database: str, files: Path, tmp_path: Path) -> None:
    """The alias follows the version that serves and is removed when turbo serves again."""
    tracker = MlflowTracker(database, tmp_path / "mlartifacts", "tiny", "ledger-c")
    for version in (1, 2):
        tracker.record(update("moving", publish=True, version=version), files)
    client = MlflowClient(database, database)
    name = tracker.model_name("moving")
    tracker.mark_champion("moving", 1)
    assert client.get_model_version_by_alias(name, "champion").tags["adaptive.version"] == "1"
    assert client.get_model_version_by_alias(name, "challenger").tags["adaptive.version"] == "2"
    tracker.mark_champion("moving", None)
    with pytest.raises(MlflowException):
        client.get_model_version_by_alias(name, "champion")
    with pytest.raises(TrackingError, match="no version 9"):
        tracker.mark_champion("moving", 9)


def test_a_server_that_is_away_costs_seconds_and_one_error(files: Path, tmp_path: Path) -> None:
    """Nothing listens on the tracking URI: one TrackingError, soon."""
    tracker = MlflowTracker("http://127.0.0.1:9", tmp_path / "mlartifacts", "tiny", "ledger-d")
    began = time.monotonic()
    with pytest.raises(TrackingError, match="tried again later"):
        tracker.record(update("acme", publish=True), files)
    assert time.monotonic() - began < 30
