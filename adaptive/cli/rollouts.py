"""`adaptive rollouts`: versions on their way into service, through the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptive.cli.client import call, call_list
from adaptive.cli.display import AsJson, print_json, print_table, print_values, when
from adaptive.cli.options import ADMIN_FIELDS, with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

app = typer.Typer(name="rollouts", help="List, show and abort rollouts of versions.", no_args_is_help=True)

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="Tenant id.")]
VersionNumber = Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Version that is rolled out.")]


@app.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_rollouts(
    settings: Settings,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's; default: everybody's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List rollouts, under way and ended, with the numbers that decide about them."""
    items = call_list(settings, "/v1/rollouts" if tenant is None else f"/v1/tenants/{tenant}/rollouts")
    if as_json:
        print_json(items)
        return
    print_table(
        ("VERSION", "STAGE", "SHARE", "SINCE", "TRACES", "GAIN IN SHADOW (95 %)", "LIFT AS CANARY", "WHY"),
        (
            (
                item["id"],
                item["stage"],
                item["share"],
                when(item["stage_since"]),
                f"{item['traces']} of {item['traces_wanted']}",
                _gain(item),
                _lift(item),
                item["reason"],
            )
            for item in items
        ),
    )


@app.command()
@with_settings(*ADMIN_FIELDS)
def show(settings: Settings, tenant: TenantId, version: VersionNumber, as_json: AsJson = False) -> None:
    """Show how far the rollout of a version is."""
    item = call(settings, "GET", f"/v1/tenants/{tenant}/rollouts/{version}")
    if as_json:
        print_json(item)
        return
    print_values(
        {
            "version": item["id"],
            "stage": item["stage"],
            "running": item["running"],
            "started": when(item["started_at"]),
            "stage since": when(item["stage_since"]),
            "canary share": item["share"],
            "scored traces": f"{item['traces']} of {item['traces_wanted']}",
            "gain in shadow (95 %)": _gain(item),
            "lift as canary (95 %)": _lift(item),
            "why": item["reason"],
        }
    )


@app.command()
@with_settings(*ADMIN_FIELDS)
def abort(settings: Settings, tenant: TenantId, version: VersionNumber) -> None:
    """End a rollout at once; its version stays a candidate and can be promoted by hand."""
    call(settings, "POST", f"/v1/tenants/{tenant}/rollouts/{version}/abort")
    typer.echo(f"rollout of {tenant}@{version} aborted; the version stays a candidate")


def _gain(item: dict[str, Any]) -> str | None:
    if item["gain_lower"] is None:
        return None
    return f"{item['gain_lower']:+.1%} to {item['gain_upper']:+.1%}"


def _lift(item: dict[str, Any]) -> str | None:
    lift = item["evidence"]
    if "tau" not in lift:
        return None
    return f"{lift['tau']:.3f} ({lift['tau_lower']:.3f} to {lift['tau_upper']:.3f})"
