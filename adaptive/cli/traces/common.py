"""What the trace commands share: filters, the log, progress."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from adaptive.cli.errors import WRONG_USE, clean_errors, fail
from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adaptive.settings import Settings
    from collectors.inspection import Selection, TraceReader
    from collectors.transport import Transport

LOG_FIELDS: Final = ("home", "log_url")
Tenants = Annotated[list[str] | None, typer.Option("--tenant", help="Only this tenant; may be repeated.")]
Requests = Annotated[list[str] | None, typer.Option("--request", help="Only this request id; repeatable.")]
Versions = Annotated[
    list[int] | None,
    typer.Option("--version", min=0, help="Only this adapter version, 0 is turbo; repeatable."),
]
Arms = Annotated[list[Arm] | None, typer.Option("--arm", help="Only what this arm drafted; repeatable.")]
Since = Annotated[
    str | None,
    typer.Option(help="Made at or after: 2026-11-30T12:00 (UTC unless it says otherwise) or 2h ago."),
]
Until = Annotated[str | None, typer.Option(help="Made before; as --since.")]
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])(?: ago)?")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def selection(
    tenants: list[str] | None,
    versions: list[int] | None,
    arms: list[Arm] | None,
    since: str | None,
    until: str | None,
    requests: list[str] | None = None,
) -> Selection:
    """Filters as the reader takes them; exits with code 2 where a time makes no sense."""
    from collectors.inspection import Selection  # noqa: PLC0415  commands load what they need

    now = time.time()
    first = parse_time("--since", since, now) if since is not None else None
    last = parse_time("--until", until, now) if until is not None else None
    if first is not None and last is not None and first >= last:
        fail(f"--since {since} is not before --until {until}: swap or correct them", WRONG_USE)
    return Selection(
        tenants=frozenset(tenants or ()),
        requests=frozenset(requests or ()),
        arms=frozenset(arms or ()),
        versions=frozenset(versions or ()),
        since=first,
        until=last,
    )


def parse_time(option: str, given: str, now: float) -> float:
    """Unix seconds of an ISO time or an age."""
    age = _AGE.fullmatch(given.strip())
    if age is not None:
        return now - float(age[1]) * _SECONDS[age[2]]
    try:
        at = datetime.fromisoformat(given.strip())
    except ValueError:
        fail(
            f"{option} {given!r} is no time: write 2026-11-30T12:00 (UTC unless it says otherwise), "
            "or an age like 30m, 2h or 7d",
            WRONG_USE,
        )
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


@contextlib.contextmanager
def opened(settings: Settings, url: str | None = None) -> Iterator[Transport]:
    """The log of these settings, or another; every error of it ends the command with one line."""
    from collectors.open import open_transport  # noqa: PLC0415  commands load what they need
    from collectors.transport import TransportError  # noqa: PLC0415  same

    if url is None:
        must_exist(settings.resolved_log_url)
    with (
        clean_errors(TransportError),
        contextlib.closing(open_transport(url or settings.resolved_log_url, kafka=settings)) as transport,
    ):
        yield transport


@contextlib.contextmanager
def progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while it lasts; call it with what is done and what there is (0: unknown)."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(description, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)


def report_passed_over(reader: TraceReader) -> None:
    """Say on stderr what a reader passed over."""
    if reader.unreadable:
        typer.echo(f"{reader.unreadable} records could not be read: see 'adaptive traces dlq list'", err=True)
    if reader.erased:
        typer.echo(f"{reader.erased} records of erased tenants left out", err=True)


def must_exist(url: str) -> None:
    """Opening an embedded log makes it; a command that only looks must not."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and not Path(rest[1:]).is_file():
        fail(f"there is no log at {rest[1:]}: start the service, or name its log with --log-url or --home")
