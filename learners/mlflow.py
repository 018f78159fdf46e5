"""Every update as an MLflow run, refused ones too, and every published version in the model registry.

The tracking server is a witness, not a part of the loop: whatever goes wrong here is one `TrackingError`, and
the learner publishes all the same and records the update later.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from learners.records import UpdateState

if TYPE_CHECKING:
    from adaptive.contracts import HoldoutScore
    from learners.records import Update, UpdateReport

UPDATE_TAG: Final = "adaptive.update"
VERSION_TAG: Final = "adaptive.version"
CHALLENGER: Final = "challenger"
CHAMPION: Final = "champion"
_METRICS_PER_CALL: Final = 900
_MISSING: Final = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's error code where a registered model or a version of it is not there."""


class TrackingError(Exception):
    """MLflow is away or refused; the update can be recorded again later."""


class UnknownVersionError(TrackingError):
    """MLflow answers, and does not know the version or its model (yet)."""


class MlflowTracker:
    """Records updates; asking twice for the same update finds the first run.

    MLflow takes seconds and 200 MB to import, so that happens with the first update. Nothing is set globally:
    the client gets its URIs here, and no ./mlruns is ever made.

    Args:
        tracking_url: MLflow tracking URI, also of the registry.
        artifacts: Directory for artifacts where the tracking URI is a database; servers choose their own.
        target: Name of the target; there is one experiment per target.
        ledger_id: Distinguishes the updates of several learners on one tracking server.
    """

    def __init__(self, tracking_url: str, artifacts: Path, target: str, ledger_id: str) -> None:
        self._url: Final = tracking_url
        self._artifacts: Final = artifacts
        self._target: Final = target
        self._ledger_id: Final = ledger_id
        self._client: Any = None

    def record(self, update: Update, directory: Path) -> str:
        """Record an evaluated update as a finished run and, if it passed the gate, register its version.

        Args:
            update: With its report.
            directory: Of the challenger's file and the manifest, each kept as an artifact.

        Returns:
            The run id.

        Raises:
            TrackingError: MLflow is away or refused.
        """
        assert update.report is not None
        try:
            client = self._connect()
            experiment_id = self._experiment(client)
            run_id = self._run(client, experiment_id, update, update.report, directory)
            if update.report.publish:
                self._register(client, update.report, run_id)
        except Exception as error:
            raise _tracking_error("record an update", error) from error
        return run_id

    def mark_champion(self, tenant: str, version: int | None) -> None:
        """Move the alias `champion` of a tenant's model; None removes it, and a missing model has none.

        Raises:
            UnknownVersionError: MLflow does not know the version or its model (yet).
            TrackingError: MLflow is away.
        """
        name = self.model_name(tenant)
        unknown = UnknownVersionError(
            f"MLflow has no version {version} of {name} yet; it is tried again later"
        )
        number: str | None = None
        try:
            client = self._connect()
            if version is None:
                client.delete_registered_model_alias(name, CHAMPION)
                return
            number = _registered(client, name, version)
            if number is not None:
                client.set_registered_model_alias(name, CHAMPION, number)
        except Exception as error:
            if getattr(error, "error_code", None) != _MISSING:
                raise _tracking_error("mark a champion", error) from error
            if version is None:
                return
            raise unknown from error
        if number is None:
            raise unknown

    def artifact(self, run_id: str, name: str, directory: Path) -> Path:
        """Fetch a file of a run into a directory.

        Raises:
            TrackingError: MLflow is away, or does not know the run or the file (any more).
        """
        try:
            return Path(self._connect().download_artifacts(run_id, name, str(directory)))
        except Exception as error:
            raise TrackingError(
                f"MLflow at {self._url} has no file {name} of run {run_id} ({_first_line(error)}): check the "
                "run id and MLFLOW_TRACKING_URI; runs of erased tenants are deleted, and those of versions "
                "before 0.2 have no such file"
            ) from error

    def model_name(self, tenant: str) -> str:
        """Name of the tenant's registered model."""
        return f"drafter.{self._target}.{tenant}"

    def _connect(self) -> Any:
        if self._client is None:
            # A server that is away must cost seconds, not MLflow's default minutes of retries.
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
            from mlflow import MlflowClient  # slow, and needed only when an update ends  # noqa: PLC0415

            for name in ("mlflow", "alembic"):
                logging.getLogger(name).setLevel(logging.WARNING)
            self._client = MlflowClient(tracking_uri=self._url, registry_uri=self._url)
        return self._client

    def _experiment(self, client: Any) -> str:
        name = f"adaptive.{self._target}"
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        local = "://" in self._url and not self._url.startswith("http")
        location = self._artifacts.resolve().as_uri() if local else None
        return str(client.create_experiment(name, artifact_location=location))

    def _run(
        self, client: Any, experiment_id: str, update: Update, report: UpdateReport, directory: Path
    ) -> str:
        key = f"{self._ledger_id}:{update.update_id}"
        for run in client.search_runs([experiment_id], filter_string=f"tags.`{UPDATE_TAG}` = '{key}'"):
            if run.info.status == "FINISHED":
                return str(run.info.run_id)
            client.delete_run(run.info.run_id)  # left half-written by a kill
        plan = report.plan
        tags = {
            UPDATE_TAG: key,
            "adaptive.tenant": plan.tenant,
            "adaptive.verdict": UpdateState.PUBLISHED if report.publish else UpdateState.REFUSED,
            "adaptive.reason": report.reason,
        }
        started = int((report.evaluated_at - report.evaluation_seconds - report.training_seconds) * 1000)
        name = f"{plan.tenant}-{plan.ordinal}"
        run_id = str(
            client.create_run(experiment_id, start_time=started, tags=tags, run_name=name).info.run_id
        )
        _log_params(client, run_id, report)
        _log_metrics(client, run_id, report)
        for file in sorted(directory.iterdir()):
            client.log_artifact(run_id, str(file))
        client.set_terminated(run_id, "FINISHED", end_time=int(report.evaluated_at * 1000))
        return run_id

    def _register(self, client: Any, report: UpdateReport, run_id: str) -> None:
        """Enter the version under the tenant's model and point the alias `challenger` to it."""
        name, version = self.model_name(report.plan.tenant), report.plan.version
        if not client.search_registered_models(filter_string=f"name = '{name}'"):
            client.create_registered_model(name)
        number = _registered(client, name, version)
        if number is None:
            source = client.get_run(run_id).info.artifact_uri
            tags = {VERSION_TAG: str(version), "adaptive.sha256": report.adapter_sha256}
            number = client.create_model_version(name, source=source, run_id=run_id, tags=tags).version
        client.set_registered_model_alias(name, CHALLENGER, number)


def _registered(client: Any, name: str, version: int) -> str | None:
    """The registry's own number of one of our versions, None if it has none."""
    found = client.search_model_versions(f"name = '{name}'")
    numbers = [entry.version for entry in found if entry.tags.get(VERSION_TAG) == str(version)]
    return str(numbers[0]) if numbers else None


def _log_params(client: Any, run_id: str, report: UpdateReport) -> None:
    from mlflow.entities import Param  # noqa: PLC0415  # as in _connect

    plan = report.plan
    values = {
        "tenant": plan.tenant,
        "update": plan.ordinal,
        "version": plan.version,
        "seed": plan.seed,
        "rank": plan.rank,
        "learning_rate": plan.learning_rate,
        "unroll_depth": plan.unroll_depth,
        "precision": plan.precision,
        "objective": plan.objective,
        "rejected_weight": plan.rejected_weight,
        "batch_tokens": plan.batch_tokens,
        "token_steps": plan.token_steps,
        "steps": report.steps,
        "training_requests": len(plan.training),
        "fresh_requests": len(plan.fresh),
        "holdout_requests": len(plan.holdout),
        "warm_start_version": plan.warm_start.version if plan.warm_start else 0,
        "champion_version": report.champion_version,
        "target_sha256": plan.target_sha256,
        "turbo_sha256": plan.turbo_sha256,
        "adapter_sha256": report.adapter_sha256,
        "trace_first_offset": _offsets(plan.first_offset),
        "trace_last_offset": _offsets(plan.last_offset),
    }
    client.log_batch(run_id, params=[Param(name, str(value)) for name, value in values.items()])


def _log_metrics(client: Any, run_id: str, report: UpdateReport) -> None:
    from mlflow.entities import Metric  # noqa: PLC0415  # as in _connect

    at = int(report.evaluated_at * 1000)
    single = {
        "gain.estimate": report.gain_estimate,
        "gain.lower": report.gain_lower,
        "gain.upper": report.gain_upper,
        "training.seconds": report.training_seconds,
        "training.tokens": float(report.plan.tokens),
        "training.peak_bytes": float(report.peak_bytes),
        "evaluation.seconds": report.evaluation_seconds,
    }
    metrics = [Metric(name, value, at, 0) for name, value in single.items() if abs(value) < float("inf")]
    metrics += [Metric("training.loss", value, at, step) for step, value in enumerate(report.losses)]
    scores = {"turbo": report.turbo, "champion": report.champion, "challenger": report.challenger}
    for name, score in scores.items():
        metrics += _score_metrics(name, score, at) if score else []
    for start in range(0, len(metrics), _METRICS_PER_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + _METRICS_PER_CALL])


def _score_metrics(name: str, score: HoldoutScore, at: int) -> list[Any]:
    from mlflow.entities import Metric  # noqa: PLC0415  # as in _connect

    positions = enumerate(score.acceptance_per_position, start=1)
    return [Metric(f"holdout.tau.{name}", score.tau, at, 0)] + [
        Metric(f"holdout.acceptance.{name}", value, at, position) for position, value in positions
    ]


def _offsets(offsets: dict[int, int]) -> str:
    return msgspec.json.encode({str(partition): offset for partition, offset in offsets.items()}).decode()


def _tracking_error(action: str, error: Exception) -> TrackingError:
    return TrackingError(
        f"MLflow could not {action} ({type(error).__name__}: {error}); it is tried again later"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
