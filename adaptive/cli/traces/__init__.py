"""`adaptive traces`: look at what was recorded, export it, send it again; settle what could not be read."""

from __future__ import annotations

import typer

from adaptive.cli.traces import dlq, export, replay, schemas, stats, tail

app = typer.Typer(
    name="traces",
    help="Inspect, export and replay recorded verify steps; dead letters.",
    no_args_is_help=True,
)
for _part in (tail, stats, export, replay, schemas):
    _part.register(app)
app.add_typer(dlq.app)
