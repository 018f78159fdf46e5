"""Tables and values for people, JSON for scripts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

AsJson = Annotated[bool, typer.Option("--json", help="Print the API's JSON.")]


def print_json(value: Any) -> None:
    """Print JSON on stdout."""
    typer.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table without borders."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(text(value) for value in row))
    # What comes from the log or the API is shown as it is: "[/x]" is no style there, ":x:" no picture.
    Console(highlight=False, markup=False, emoji=False).print(table)


def print_values(values: Mapping[str, Any]) -> None:
    """Print one name and value per line."""
    width = max(len(name) for name in values)
    for name, value in values.items():
        typer.echo(f"{name:<{width}}  {text(value)}")


def text(value: Any) -> str:
    """Show a value: yes/no, two decimals, a dash for nothing; what would steer a terminal is escaped."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    shown = str(value)
    return shown if shown.isprintable() else "".join(map(_printable, shown))


def when(seconds: float | None) -> str:
    """Show a time, in UTC to the second."""
    if seconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a record of the log may claim any time
        return f"{seconds:g}"


def drafter(version: int | None) -> str:
    """Name what serves."""
    return "turbo" if not version else f"adapter@{version}"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
