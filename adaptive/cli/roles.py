"""Commands that run roles of the service: up, serve, learn, control, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.errors import clean_errors
from adaptive.cli.extras import needs
from adaptive.cli.options import with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from collections.abc import Callable


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    commands: tuple[Callable[..., None], ...] = (up, serve, learn, control, demo)
    for command in commands:
        # What `serve` does not know itself is vLLM's to accept or refuse.
        context = {"ignore_unknown_options": True} if command is serve else {}
        app.command(context_settings=context)(with_settings()(command))


def up(
    settings: Settings,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Also run an MLflow server on loopback.")] = False,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow server.")] = 5000,
) -> None:
    """Run everything on this machine: endpoint, engine, learner, controller. Ctrl-C drains."""
    from adaptive.up.app import run  # noqa: PLC0415  commands load what they need

    raise typer.Exit(run(settings, mlflow_port if mlflow else None))


def serve(
    settings: Settings,
    vllm_flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VLLM FLAGS]",
            help="Any flag of `vllm serve`, passed on to its server; after -- where a setting has its name.",
        ),
    ] = None,
) -> None:
    """Run the endpoint: OpenAI API and engine. Takes the flags of `vllm serve` too."""
    with needs("serving-cpu or serving-gpu"):
        from adaptive.endpoint.app import run  # noqa: PLC0415  imports vLLM's environment
        from adaptive.endpoint.arguments import ArgumentError  # noqa: PLC0415
        from adaptive.endpoint.identity import ModelDirectoryError  # noqa: PLC0415
        from adaptive.engine.compatibility import IncompatibleVllmError  # noqa: PLC0415
        from collectors.transport import TransportError  # noqa: PLC0415
    with clean_errors(ModelDirectoryError, ArgumentError, IncompatibleVllmError, TransportError):
        run(settings, vllm_flags or ())


def learn(settings: Settings) -> None:
    """Run the learner: trains a tenant's adapter whenever enough new traffic has come in."""
    with needs("learn"):
        from adaptive import log  # noqa: PLC0415
        from adaptive.models import ModelError  # noqa: PLC0415
        from adaptive.speculator.config import CheckpointError  # noqa: PLC0415
        from collectors.transport import TransportError  # noqa: PLC0415
        from learners.app import run  # noqa: PLC0415  imports torch
    log.configure("learn")
    with clean_errors(ModelError, CheckpointError, TransportError):
        run(settings)


def control(settings: Settings) -> None:
    """Run the controller: admin API and policy."""
    with needs("controller"):
        from collectors.transport import TransportError  # noqa: PLC0415
        from controller.admin_key import AdminKeyError  # noqa: PLC0415
        from controller.app import ListenError, run  # noqa: PLC0415
        from controller.database import DatabaseUrlError  # noqa: PLC0415
    with clean_errors(ListenError, TransportError, AdminKeyError, DatabaseUrlError):
        run(settings)


def demo(
    settings: Settings,
    minutes: Annotated[float, typer.Option(min=1, help="Most minutes the demo takes.")] = 15,
    output: Annotated[Path, typer.Option(help="Where the report is written.")] = Path(
        "runs/demo/report.json"
    ),
) -> None:
    """Show an endpoint getting faster with the traffic of two tenants, and write a report."""
    from adaptive.demo.app import run  # noqa: PLC0415  commands load what they need
    from adaptive.up.stack import StackError  # noqa: PLC0415

    with clean_errors(StackError):
        raise typer.Exit(run(settings, minutes, output))
