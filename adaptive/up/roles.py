"""What runs on one machine: the roles, their commands, and when each is ready."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from adaptive.up.addresses import base_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from adaptive.settings import Settings

MLFLOW_PORT: Final = 5000
_REQUEST_SECONDS: Final = 2.0
_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks directly: a proxy of the environment is not for the roles of this machine."""


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[float], bool]
    """Whether the process started at this time (Unix seconds) can do its work."""
    restart: bool = True
    """Whether it is started again after a crash; if not, its crash ends everything."""
    port: int | None = None
    start_seconds: float = 120.0
    drain_seconds: float = 30.0
    remedy: str = ""
    """What to do where its port is taken."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Besides that of all roles."""


def standard_roles(settings: Settings, mlflow_port: int | None = None) -> tuple[Role, ...]:
    """Roles of a whole service on this machine.

    Args:
        settings: Settings of all of them.
        mlflow_port: Port of an MLflow server on loopback; None: no server.
    """
    command = (sys.executable, "-m", "adaptive.cli")
    control = base_url(settings.host, settings.control_port)
    endpoint = base_url(settings.host, settings.endpoint_port)
    roles = [
        Role(
            "control",
            (*command, "control"),
            ready=lambda _: answers(f"{control}/readyz"),
            port=settings.control_port,
            remedy="--control-port",
        ),
        Role(
            "serve",
            (*command, "serve"),
            ready=lambda _: answers(f"{endpoint}/health"),
            restart=False,
            port=settings.endpoint_port,
            start_seconds=900.0,
            remedy="--endpoint-port",
        ),
        Role(
            "learn",
            (*command, "learn"),
            ready=lambda started_at: learner_runs(settings.home / "learner" / "status.json", started_at),
            start_seconds=300.0,
        ),
    ]
    if mlflow_port is not None:
        roles.append(
            Role(
                "mlflow",
                (
                    *(sys.executable, "-m", "mlflow", "server"),
                    *("--host", "127.0.0.1", "--port", str(mlflow_port), "--workers", "1"),
                    *("--backend-store-uri", f"sqlite:///{settings.home.resolve()}/mlflow.db"),
                    *("--artifacts-destination", str(settings.home.resolve() / "mlartifacts")),
                ),
                ready=lambda _: answers(f"http://127.0.0.1:{mlflow_port}/health"),
                port=mlflow_port,
                remedy="--mlflow-port",
                # Its background jobs, which nothing here uses, are nine more processes.
                environment={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )
        )
    return tuple(roles)


def answers(url: str) -> bool:
    """Whether a GET is answered with 2xx."""
    try:
        with _opener.open(url, timeout=_REQUEST_SECONDS):
            return True
    except (OSError, urllib.error.URLError):
        return False


def learner_runs(status: Path, started_at: float) -> bool:
    """Whether a learner started at `started_at` says in its status file that it runs."""
    try:
        content = json.loads(status.read_bytes())
        return bool(content["state"] == "running" and content["updated_at"] >= started_at)
    except (OSError, ValueError, KeyError, TypeError):
        return False
