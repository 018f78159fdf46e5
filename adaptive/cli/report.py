"""`adaptive report`: what learning costs and what it saves, per tenant, through the admin API."""

from __future__ import annotations

from typing import Any

import typer

from adaptive.cli.client import call, call_list
from adaptive.cli.display import AsJson, drafter, print_json, print_table
from adaptive.cli.options import ADMIN_FIELDS, with_settings
from adaptive.payback import ArmTime, engine_seconds_saved
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(with_settings(*ADMIN_FIELDS)(report))


def report(settings: Settings, as_json: AsJson = False) -> None:
    """Compare, for each tenant, the seconds spent on training with the engine seconds saved over turbo.

    Saved: what turbo would have taken for the tokens that adapters drafted, at its own rate on the tenant's
    traffic, less what they took. A dash: nothing to compare yet. A negative number: adapters cost time.
    """
    tenants = call_list(settings, "/v1/tenants")
    rows = [_row(call(settings, "GET", f"/v1/tenants/{tenant['id']}")) for tenant in tenants]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("TENANT", "SERVES", "TRAINED S", "TODAY", "SAVED S", "PAID BACK", "DRIFTS", "NEXT", "WAITS FOR"),
        (
            (
                row["tenant"],
                drafter(row["champion"]),
                row["training_seconds"],
                row["training_seconds_today"],
                row["engine_seconds_saved"],
                row["paid_back"],
                row["drifts"],
                f"{row['expected_gain']:.1%}",
                row["waiting_for"] or None,
            )
            for row in rows
        ),
    )  # fmt: skip
    trained = sum(row["training_seconds"] for row in rows)
    saved = sum(row["engine_seconds_saved"] or 0.0 for row in rows)
    typer.echo(f"\nall tenants: {trained:.1f} s of training, {saved:.1f} s of engine time saved")


def _row(tenant: dict[str, Any]) -> dict[str, Any]:
    """The figures of one tenant of the admin API."""
    learning = tenant["learning"] or {}
    saved = engine_seconds_saved(
        ArmTime(arm["arm"], arm["tokens"], arm["engine_seconds"]) for arm in tenant["arms"]
    )
    trained = float(learning.get("training_seconds", 0.0))
    return {
        "tenant": tenant["id"],
        "champion": tenant["champion"],
        "training_seconds": trained,
        "training_seconds_today": float(learning.get("training_seconds_today", 0.0)),
        "engine_seconds_saved": saved,
        "paid_back": saved / trained if saved is not None and trained else None,
        "drifts": int(learning.get("drifts", 0)),
        "expected_gain": float(learning.get("expected_gain", 0.0)),
        "expected_saving_seconds": float(learning.get("expected_saving_seconds", 0.0)),
        "expected_cost_seconds": float(learning.get("expected_cost_seconds", 0.0)),
        "waiting_for": learning.get("waiting_for", ""),
    }
