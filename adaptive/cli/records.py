"""`adaptive decisions`, `jobs`, `engines`, `learners`, `series`: what the admin API knows, to read."""

from __future__ import annotations

from typing import Annotated

import typer

from adaptive.cli.client import call, call_list
from adaptive.cli.display import AsJson, drafter, print_json, print_table, print_values, when
from adaptive.cli.options import ADMIN_FIELDS, with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

decisions = typer.Typer(name="decisions", help="Read what was decided, and why.", no_args_is_help=True)
jobs = typer.Typer(
    name="jobs", help="Follow what the controller does in the background.", no_args_is_help=True
)
engines = typer.Typer(name="engines", help="Read what engines report.", no_args_is_help=True)
learners = typer.Typer(name="learners", help="Read what learners report.", no_args_is_help=True)
series = typer.Typer(
    name="series", help="Read a tenant's acceptance and lift over time.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the groups to the command."""
    for group in (decisions, jobs, engines, learners, series):
        group.callback()(_group)
        app.add_typer(group)


def _group() -> None:
    """Keep a group's only command a command of its own."""


@decisions.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_decisions(
    settings: Settings,
    tenant: Annotated[str | None, typer.Option(help="Only those about this tenant.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most decisions shown.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List decisions, newest first."""
    path = "/v1/decisions" if tenant is None else f"/v1/tenants/{tenant}/decisions"
    items = call(settings, "GET", f"{path}?limit={limit}")["data"]
    if as_json:
        print_json(items)
        return
    print_table(
        ("WHEN", "TENANT", "WHAT", "BY", "SERVES", "WHY"),
        (
            (
                when(item["decided_at"]),
                item["tenant"],
                item["kind"],
                item["actor"],
                drafter(item["champion"]),
                item["reason"],
            )
            for item in items
        ),
    )


@jobs.command()
@with_settings(*ADMIN_FIELDS)
def show(
    settings: Settings,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id, as the command that began it shows.")],
    as_json: AsJson = False,
) -> None:
    """Show how far a job is and what it waits for."""
    item = call(settings, "GET", f"/v1/jobs/{job}")
    if as_json:
        print_json(item)
        return
    print_values(
        {
            "job": item["id"],
            "does": f"{item['kind']} tenant {item['tenant']}",
            "state": item["state"],
            "step": item["step"],
            "waiting": item["waiting"],
            "asked by": item["requested_by"],
            "asked": when(item["requested_at"]),
            "done": when(item["finished_at"]),
        }
    )


@jobs.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_jobs(settings: Settings, as_json: AsJson = False) -> None:
    """List jobs, under way or done; `tenants erasures` shows what each removed."""
    items = call_list(settings, "/v1/erasures")
    if as_json:
        print_json(items)
        return
    print_table(
        ("JOB", "WHAT", "TENANT", "STATE", "STEP", "ASKED", "WAITING"),
        (
            (
                item["id"],
                item["kind"],
                item["tenant"],
                item["state"],
                item["step"],
                when(item["requested_at"]),
                item["waiting"],
            )
            for item in items
        ),
    )


@engines.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_engines(settings: Settings, as_json: AsJson = False) -> None:
    """List engines: alive, swaps, slowdown, and what they refused."""
    items = call_list(settings, "/v1/engines")
    if as_json:
        print_json(items)
        return
    print_table(
        ("ENGINE", "ALIVE", "REPORTED", "SWAPS", "LONGEST PAUSE (MS)", "STEP OVER USUAL", "QUEUE", "REFUSED"),
        (
            (
                item["id"],
                item["alive"],
                when(item["reported_at"]),
                item["swaps"],
                item["swap_pause_ms_max"],
                item["slowdown"] and item["slowdown"]["ratio"],
                item["queue_depth"],
                ", ".join(sorted(item["refused"])) or None,
            )
            for item in items
        ),
    )


@learners.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_learners(settings: Settings, as_json: AsJson = False) -> None:
    """List learners: lag, updates due, what is trained."""
    items = call_list(settings, "/v1/learners")
    if as_json:
        print_json(items)
        return
    print_table(
        ("LEARNER", "ALIVE", "STATE", "LAG (RECORDS)", "BEHIND (S)", "UPDATES DUE", "ERROR"),
        (
            (
                item["id"],
                item["alive"],
                item["state"],
                item["lag_records"],
                item["behind_seconds"],
                item["updates_due"],
                item["error"],
            )
            for item in items
        ),
    )


@series.command(name="show")
@with_settings(*ADMIN_FIELDS)
def show_series(
    settings: Settings,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Tenant id.")],
    as_json: AsJson = False,
) -> None:
    """Show the last hour of every arm of a tenant; --json adds positions and context lengths."""
    item = call(settings, "GET", f"/v1/tenants/{tenant}/series")
    if as_json:
        print_json(item)
        return
    print_table(
        ("AT", "ARM", "VERSION", "REQUESTS", "VERIFY STEPS", "TAU", "ACCEPTANCE", "TOKENS/S"),
        (
            (
                when(point["at"]),
                arm["arm"],
                arm["version"],
                point["requests"],
                point["verify_steps"],
                point["tau"],
                point["acceptance"],
                point["tokens_per_engine_second"],
            )
            for arm in item["data"]
            for point in arm["points"]
        ),
    )
