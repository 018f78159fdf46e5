"""`adaptive traces schemas`: JSON Schema of every message."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer evaluates the annotations
from typing import Annotated

import typer

from adaptive import schemas as message_schemas
from adaptive.cli.errors import fail


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(schemas)


def schemas(
    output: Annotated[Path, typer.Option(help="Directory of the files.")] = message_schemas.DIRECTORY,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if a file differs from the code.")
    ] = False,
) -> None:
    """Write the JSON Schema of every message of the log."""
    if check:
        stale = message_schemas.stale(output)
        if stale:
            fail(f"{', '.join(stale)} in {output} differ from the code: run 'adaptive traces schemas'")
        return
    for path in message_schemas.write(output):
        typer.echo(path)
