"""`adaptive drafters`: adapter versions of a tenant, through the admin API; `rerun` reads the log instead."""

from __future__ import annotations

from typing import Annotated

import typer

from adaptive.cli import rerun
from adaptive.cli.client import call, call_list
from adaptive.cli.display import AsJson, drafter, print_json, print_table, print_values, when
from adaptive.cli.options import ADMIN_FIELDS, with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

app = typer.Typer(
    name="drafters", help="List, show, promote, roll back, delete, rerun versions.", no_args_is_help=True
)

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="Tenant id.")]


@app.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_versions(settings: Settings, tenant: TenantId, as_json: AsJson = False) -> None:
    """List the versions learned for a tenant, newest first."""
    items = call_list(settings, f"/v1/tenants/{tenant}/versions")
    if as_json:
        print_json(items)
        return
    print_table(
        ("VERSION", "STATUS", "HOLD-OUT TAU", "TURBO'S", "GAIN (95 %)", "TOKENS", "CREATED", "WHY"),
        (
            (
                item["version"],
                item["status"],
                item["holdout_tau"]["challenger"],
                item["holdout_tau"]["turbo"],
                f"{item['gain_lower']:+.1%} to {item['gain_upper']:+.1%}",
                item["tokens_trained"],
                when(item["created_at"]),
                item["reason"],
            )
            for item in items
        ),
    )


@app.command()
@with_settings(*ADMIN_FIELDS)
def show(
    settings: Settings,
    tenant: TenantId,
    version: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Version to show.")],
    as_json: AsJson = False,
) -> None:
    """Show one version and where it comes from: MLflow run, trace offsets, seed, decisions."""
    item = call(settings, "GET", f"/v1/tenants/{tenant}/versions/{version}")
    if as_json:
        print_json(item)
        return
    first, last = item["trace_first_offset"], item["trace_last_offset"]
    print_values(
        {
            "version": item["id"],
            "status": f"{item['status']}: {item['reason']}",
            "created": when(item["created_at"]),
            "file": item["uri"],
            "sha256": item["sha256"],
            "gain (95 %)": f"{item['gain_lower']:+.1%} to {item['gain_upper']:+.1%}",
            "tokens trained": item["tokens_trained"],
            "mlflow run": item["mlflow_run_id"],
            "seed": item["seed"],
            "trace offsets": ", ".join(f"{each}: {first[each]}-{last.get(each, '?')}" for each in first),
            "derived from": ", ".join(item["derived_from"]) or tenant,
        }
    )
    for decision in item["decisions"]:
        typer.echo(f"{when(decision['decided_at'])}  {decision['kind']}: {decision['reason']}")


@app.command()
@with_settings(*ADMIN_FIELDS)
def promote(
    settings: Settings,
    tenant: TenantId,
    version: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Version to put in service.")],
) -> None:
    """Put a version in service; the policy goes on watching it."""
    item = call(settings, "POST", f"/v1/tenants/{tenant}/promote", {"version": version})
    typer.echo(f"{drafter(item['champion'])} serves {tenant} (policy {item['policy_version']})")


@app.command()
@with_settings(*ADMIN_FIELDS)
def rollback(settings: Settings, tenant: TenantId) -> None:
    """Return to what served before, else to turbo."""
    item = call(settings, "POST", f"/v1/tenants/{tenant}/rollback")
    typer.echo(f"{drafter(item['champion'])} serves {tenant} (policy {item['policy_version']})")


@app.command()
@with_settings(*ADMIN_FIELDS)
def delete(
    settings: Settings,
    tenant: TenantId,
    version: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Version to delete.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the bytes of a version that is not in use; its record stays."""
    if not yes:
        typer.confirm(f"delete {tenant}@{version}? Nothing brings it back", abort=True)
    call(settings, "DELETE", f"/v1/tenants/{tenant}/versions/{version}")
    typer.echo(f"{tenant}@{version} deleted")


rerun.register(app)
