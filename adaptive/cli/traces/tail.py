"""`adaptive traces tail`: the newest traces, and those to come."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from adaptive.cli.display import text, when
from adaptive.cli.options import with_settings
from adaptive.cli.traces.common import (
    LOG_FIELDS,
    Arms,
    Requests,
    Since,
    Tenants,
    Until,
    Versions,
    opened,
    report_passed_over,
    selection,
)
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from collectors.inspection import Found


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_settings(*LOG_FIELDS)(tail))


def tail(
    settings: Settings,
    tenant: Tenants = None,
    request: Requests = None,
    version: Versions = None,
    arm: Arms = None,
    since: Since = None,
    until: Until = None,
    number: Annotated[int, typer.Option("-n", "--number", min=0, help="Traces to show.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new ones until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, with token ids and no text.")
    ] = False,
) -> None:
    """Show the newest traces, oldest first, one line each: never text, and token ids with --json only."""
    from collectors.inspection import TraceReader  # noqa: PLC0415  commands load what they need

    chosen = selection(tenant, version, arm, since, until, request)
    with opened(settings) as transport, TraceReader(transport) as reader:
        for found in reader.newest(chosen, number):
            _show(found, as_json=as_json)
        report_passed_over(reader)
        with contextlib.suppress(KeyboardInterrupt):
            while follow:
                for found in reader.follow(chosen):
                    _show(found, as_json=as_json)


def _show(found: Found, *, as_json: bool) -> None:
    from collectors.trace_files import as_line  # noqa: PLC0415  as above

    if as_json:
        typer.echo(msgspec.json.encode(as_line(found, raw=False)))
        return
    trace, record = found.trace, found.record
    drafted = sum(len(step.drafted) for step in trace.steps)
    accepted = sum(step.accepted for step in trace.steps)
    drafters = sorted(
        {f"{step.arm}@{step.version}" if step.version else str(step.arm) for step in trace.steps}
    )
    tau = 1 + accepted / len(trace.steps) if trace.steps else 0.0
    end = " (end)" if trace.finished else ""
    typer.echo(
        f"{when(trace.created_at)}  {text(trace.tenant)}  {text(trace.trace_id)}{end}  "
        f"{','.join(drafters) or '-'}  steps {len(trace.steps)}  drafted {drafted}  accepted {accepted}  "
        f"tau {tau:.2f}  tokens {len(trace.output_ids)}  features {'yes' if trace.features else 'no'}  "
        f"at {record.partition}:{record.offset}"
    )
