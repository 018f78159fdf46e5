"""The `adaptive` command."""

from __future__ import annotations

from importlib.metadata import version as distribution_version
from typing import Annotated

import typer

from adaptive.cli import (
    doctor,
    drafters,
    export,
    models,
    policies,
    records,
    report,
    roles,
    rollouts,
    tenants,
    topics,
    traces,
)

app = typer.Typer(
    name="adaptive",
    help="Online adaptive speculation for vLLM: per-tenant drafters that learn from the traffic they serve.",
    no_args_is_help=True,
    # Tracebacks of faults stay plain: rich ones show local variables, which may hold prompts and keys.
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(distribution_version("adaptive-speculator"))
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Online adaptive speculation for vLLM."""


roles.register(app)
app.add_typer(models.app)
app.add_typer(tenants.app)
app.add_typer(drafters.app)
app.add_typer(rollouts.app)
records.register(app)
app.add_typer(policies.app)
app.add_typer(traces.app)
app.add_typer(topics.app)
export.register(app)
report.register(app)
doctor.register(app)
