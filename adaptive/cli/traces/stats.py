"""`adaptive traces stats`: what drafted for whom, and how much of it was accepted."""

from __future__ import annotations

import msgspec
import typer

from adaptive.cli.display import AsJson, print_json, print_table
from adaptive.cli.options import with_settings
from adaptive.cli.traces.common import (
    LOG_FIELDS,
    Arms,
    Since,
    Tenants,
    Until,
    Versions,
    opened,
    progress,
    report_passed_over,
    selection,
)
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_settings(*LOG_FIELDS)(stats))


def stats(
    settings: Settings,
    tenant: Tenants = None,
    version: Versions = None,
    arm: Arms = None,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Add up the traces in the log per tenant, arm and version.

    A record in which several arms drafted counts in the records, requests and bytes of each.
    """
    from collectors.inspection import TraceReader  # noqa: PLC0415  commands load what they need
    from collectors.statistics import TraceStatistics  # noqa: PLC0415  same

    chosen = selection(tenant, version, arm, since, until)
    statistics = TraceStatistics(chosen)
    with opened(settings) as transport, TraceReader(transport) as reader:
        with progress("reading") as show:
            for found in reader.scan(chosen, show):
                statistics.add(found)
        report_passed_over(reader)
    groups = statistics.groups()
    if as_json:
        print_json([msgspec.to_builtins(group) for group in groups])
        return
    if not groups:
        typer.echo("no traces match", err=True)
        return
    columns = ("TENANT", "ARM", "VERSION", "RECORDS", "REQUESTS", "VERIFY STEPS", "DRAFTED", "ACCEPTED")
    print_table(
        (*columns, "TAU", "ALPHA", "PER POSITION", "FEATURES", "BYTES"),
        (
            (
                *(group.tenant, str(group.arm), group.version, group.records, group.requests),
                *(group.verify_steps, group.drafted, group.accepted, group.tau, group.alpha),
                " ".join(f"{share:.2f}" for share in group.acceptance_per_position) or None,
                f"{group.features_share:.0%}",
                group.bytes,
            )
            for group in groups
        ),
    )
