"""`adaptive doctor`: can this machine run the service, and if not, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from adaptive.cli.errors import FAILED
from adaptive.cli.options import with_settings
from adaptive.settings import Settings  # noqa: TC001  the signature is evaluated

if TYPE_CHECKING:
    from adaptive.cli.checks import Check


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(
        with_settings("home", "host", "endpoint_port", "control_port", "model", "turbo", "log_url")(doctor)
    )


def doctor(settings: Settings) -> None:
    """Check packages, model, ports, state directory, disk and log; exit code 1 if anything is wrong."""
    from adaptive.cli.checks import run_checks  # noqa: PLC0415  commands load what they need

    problems = 0
    for check in run_checks(settings):
        _show(check)
        problems += check.remedy is not None
    if problems:
        typer.echo(f"{problems} problem{'s' if problems > 1 else ''}", err=True)
        raise typer.Exit(FAILED)


def _show(check: Check) -> None:
    if check.remedy is None:
        typer.echo(f"ok       {check.name}: {check.found}")
    else:
        typer.echo(f"problem  {check.name}: {check.found}; {check.remedy}")
