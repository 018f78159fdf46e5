"""Removing a tenant from MLflow for good: registered models, runs and their artifacts.

MLflow's API only marks runs as deleted; what removes them is `mlflow gc`, which needs the server's database.
Where that is not known, an erasure waits until somebody ran it there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from learners.mlflow import TrackingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adaptive.settings import Settings

TENANT_TAG: Final = "adaptive.tenant"
EXPERIMENT_PREFIX: Final = "adaptive."
_GC_SECONDS: Final = 180.0
_PAGE: Final = 1000


class MlflowEraser:
    """Removes tenants; doing it again finds nothing.

    Args:
        tracking_url: MLflow tracking URI, also of the registry.
        backend_url: SQLAlchemy URL of the server's database; None: not known here.
        artifacts: Where the server keeps artifacts, for `mlflow gc`.
    """

    def __init__(self, tracking_url: str, backend_url: str | None, artifacts: Path) -> None:
        self._url: Final = tracking_url
        self._backend_url: Final = backend_url
        self._artifacts: Final = artifacts

    def erase(self, tenant: str) -> dict[str, int]:
        """Remove a tenant's models, runs and artifacts.

        Returns:
            How many of each there were.

        Raises:
            TrackingError: MLflow is away, or somebody must run `mlflow gc` first; the message says so.
        """
        try:
            return self._erase(tenant)
        except TrackingError:
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise TrackingError(f"MLflow at {self._url} is away ({type(error).__name__}: {text})") from error

    def find(self, tenant: str) -> dict[str, int]:
        """Count what MLflow still has of a tenant, deleted runs included.

        Raises:
            TrackingError: MLflow is away.
        """
        try:
            client = self._connect()
            return {"models": len(self._models(client, tenant)), "runs": len(self._runs(client, tenant))}
        except Exception as error:
            raise TrackingError(f"MLflow at {self._url} is away ({type(error).__name__}: {error})") from error

    def _erase(self, tenant: str) -> dict[str, int]:
        client = self._connect()
        models = self._models(client, tenant)
        for name in models:
            client.delete_registered_model(name)
        runs = self._runs(client, tenant)
        for run in runs:
            if run.info.lifecycle_stage != "deleted":
                client.delete_run(run.info.run_id)
        if runs:
            self._collect([run.info.run_id for run in runs])
            for run in runs:
                _remove_local(run.info.artifact_uri)
        left = self._runs(client, tenant)
        if left:
            raise TrackingError(
                f"MLflow at {self._url} has marked {len(left)} runs as deleted and keeps them: run 'mlflow "
                f"gc --run-ids {','.join(run.info.run_id for run in left)}' there, or set "
                "ADAPTIVE_TRACKING_BACKEND_URL to its database"
            )
        if self._backend_url is not None:
            _compact(self._backend_url)
        return {"mlflow models": len(models), "mlflow runs": len(runs)}

    def _connect(self) -> Any:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient  # slow to import  # noqa: PLC0415

        return MlflowClient(tracking_uri=self._url, registry_uri=self._url)

    def _experiments(self, client: Any) -> Mapping[str, str]:
        """Target -> experiment id, of every target this service has served."""
        found = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENT_PREFIX}%'")
        return {each.name.removeprefix(EXPERIMENT_PREFIX): each.experiment_id for each in found}

    def _models(self, client: Any, tenant: str) -> list[str]:
        names = {f"drafter.{target}.{tenant}" for target in self._experiments(client)}
        return sorted(
            name for name in names if client.search_registered_models(filter_string=f"name = '{name}'")
        )

    def _runs(self, client: Any, tenant: str) -> list[Any]:
        from mlflow.entities import ViewType  # noqa: PLC0415  # as above

        experiments = list(self._experiments(client).values())
        if not experiments:
            return []
        found: list[Any] = []
        token = None
        while True:
            page = client.search_runs(
                experiments,
                filter_string=f"tags.`{TENANT_TAG}` = '{tenant}'",
                run_view_type=ViewType.ALL,
                max_results=_PAGE,
                page_token=token,
            )
            found += page
            token = page.token
            if not token:
                return found

    def _collect(self, run_ids: list[str]) -> None:
        """Have MLflow's own collector remove runs that are marked as deleted, with their artifacts."""
        if self._backend_url is None:
            return
        arguments = ["--backend-store-uri", self._backend_url, "--tracking-uri", self._url]
        arguments += ["--artifacts-destination", str(self._artifacts.resolve())]
        done = subprocess.run(  # noqa: S603  # ourselves and our settings
            [sys.executable, "-m", "mlflow", "gc", *arguments, "--run-ids", ",".join(run_ids)],
            capture_output=True,
            text=True,
            timeout=_GC_SECONDS,
            check=False,
        )
        if done.returncode:
            text = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise TrackingError(f"mlflow gc failed: {text[-1] if text else done.returncode}")


def backend_url(settings: Settings) -> str | None:
    """Database of the MLflow server that these settings name, as far as this machine knows it."""
    if settings.tracking_backend_url is not None:
        return settings.tracking_backend_url
    url = settings.resolved_tracking_url
    if not url.startswith("http"):
        return url
    home = settings.home / "mlflow.db"  # `adaptive up` runs a server on it
    local = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
    return settings.default_tracking_url if local and home.exists() else None


def _remove_local(artifact_uri: str) -> None:
    """Remove the empty directories that the collector leaves of a run."""
    if artifact_uri.startswith("file://"):
        directory = Path(artifact_uri.removeprefix("file://")).parent
        shutil.rmtree(directory, ignore_errors=True)


def _compact(url: str) -> None:
    """Wipe the free pages of an SQLite database: MLflow deletes without overwriting."""
    if not url.startswith("sqlite:///"):
        return
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
