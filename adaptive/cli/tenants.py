"""`adaptive tenants`: accounts, policy settings and keys, through the admin API."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from adaptive.cli.client import call, call_list
from adaptive.cli.display import AsJson, drafter, print_json, print_table, print_values, when
from adaptive.cli.errors import FAILED, WRONG_USE, fail
from adaptive.cli.options import ADMIN_FIELDS, with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

app = typer.Typer(
    name="tenants", help="Create, show and change tenants and their keys.", no_args_is_help=True
)
keys = typer.Typer(name="keys", help="Make, list and revoke API keys of a tenant.", no_args_is_help=True)
app.add_typer(keys)

_POLL_SECONDS: Final = 0.5
TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="Tenant id.")]


@app.command()
@with_settings(*ADMIN_FIELDS)
def create(
    settings: Settings,
    tenant: TenantId,
    learn: Annotated[bool, typer.Option("--learn", help="Learn from its traffic (off by default).")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a tenant; turbo serves it until an adapter has been learned."""
    made = call(settings, "POST", "/v1/tenants", {"id": tenant, "learn": learn})
    if as_json:
        print_json(made)
    else:
        typer.echo(f"tenant {tenant} created, learning {'on' if learn else 'off'}")


@app.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_tenants(settings: Settings, as_json: AsJson = False) -> None:
    """List tenants."""
    items = call_list(settings, "/v1/tenants")
    if as_json:
        print_json(items)
        return
    print_table(
        ("TENANT", "STATE", "LEARN", "FREEZE", "PIN", "SERVES", "CREATED"),
        (
            (
                item["id"],
                item["state"],
                item["learn"],
                item["freeze"],
                item["pin"],
                drafter(item["champion"]),
                when(item["created_at"]),
            )
            for item in items
        ),
    )


@app.command()
@with_settings(*ADMIN_FIELDS)
def show(settings: Settings, tenant: TenantId, as_json: AsJson = False) -> None:
    """Show what serves a tenant, how well, and what its learner does."""
    item = call(settings, "GET", f"/v1/tenants/{tenant}")
    if as_json:
        print_json(item)
        return
    lift = item["lift"]
    learning = item["learning"] or {}
    print_values(
        {
            "tenant": item["id"],
            "state": item["state"],
            "learn": item["learn"],
            "freeze": item["freeze"],
            "pin": item["pin"],
            "serves": f"{drafter(item['champion'])} since {when(item['champion_since'])}",
            "policy": item["policy_version"],
            "lookahead": item["lookahead"],
            "weight": item["weight"],
            "quotas": _quotas(item),
            "tau": item["tau"],
            "acceptance": item["acceptance"],
            "lift": lift and f"{lift['tau']:.3f} ({lift['tau_lower']:.3f} to {lift['tau_upper']:.3f})",
            "training": learning.get("training"),
        }
    )
    if item["arms"]:
        typer.echo()
        print_table(
            ("ARM", "VERSION", "REQUESTS", "VERIFY STEPS", "TAU", "ACCEPTANCE", "TOKENS", "TOKENS/S"),
            (
                (
                    arm["arm"],
                    arm["version"],
                    arm["requests"],
                    arm["verify_steps"],
                    arm["tau"],
                    arm["acceptance"],
                    arm["tokens"],
                    arm["tokens_per_engine_second"],
                )
                for arm in item["arms"]
            ),
        )
    for engine in item["engines"]:
        state = "in force" if engine["current"] else f"still at policy {engine['policy_version']}"
        typer.echo(f"engine {engine['engine']}: {state}{'' if engine['alive'] else ', not reporting'}")
    for refusal in item["refusals"]:
        typer.echo(f"refused: {refusal['reason']}")


@app.command()
@with_settings(*ADMIN_FIELDS)
def patch(
    settings: Settings,
    tenant: TenantId,
    learn: Annotated[bool | None, typer.Option(help="Whether its traffic may train adapters.")] = None,
    share: Annotated[bool | None, typer.Option(help="Whether its traffic may enter a shared turbo.")] = None,
    freeze: Annotated[bool | None, typer.Option(help="Whether to stop training and publishing.")] = None,
    pin: Annotated[
        int | None, typer.Option(help="Version that serves whatever the policy finds; 0 is turbo.")
    ] = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Let the policy decide again.")] = False,
    max_lookahead: Annotated[int | None, typer.Option(help="Most draft tokens of a verify step.")] = None,
    control_share: Annotated[float | None, typer.Option(help="Share of requests that run turbo.")] = None,
    off_share: Annotated[float | None, typer.Option(help="Share of requests without speculation.")] = None,
    weight: Annotated[float | None, typer.Option(help="Weight of the adapter's delta, 0 to 1.")] = None,
    state: Annotated[str | None, typer.Option(help="active or suspended.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Most requests admitted.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Most prompt and answer tokens.")] = None,
    concurrent_requests: Annotated[int | None, typer.Option(help="Most requests in flight.")] = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Take every other quota away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change a tenant; what is not named stays as it is."""
    given: dict[str, Any] = {
        "learn": learn,
        "share": share,
        "freeze": freeze,
        "pin": pin,
        "max_lookahead": max_lookahead,
        "control_share": control_share,
        "off_share": off_share,
        "weight": weight,
        "state": state,
    }
    quotas = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent_requests": concurrent_requests,
    }
    body = {name: value for name, value in (given | quotas).items() if value is not None}
    if unlimited:
        body = dict.fromkeys(quotas) | body
    if unpin:
        if pin is not None:
            fail("--pin and --unpin exclude each other", WRONG_USE)
        body["pin"] = None
    if not body:
        fail("nothing to change: name a field, see 'adaptive tenants patch --help'", WRONG_USE)
    item = call(settings, "PATCH", f"/v1/tenants/{tenant}", body)
    if as_json:
        print_json(item)
    else:
        typer.echo(f"tenant {tenant} changed: {', '.join(body)}")


@app.command()
@with_settings(*ADMIN_FIELDS)
def erase(
    settings: Settings,
    tenant: TenantId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait until it is done.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Erase a tenant and everything learnt from it; nothing brings it back."""
    if not yes:
        typer.confirm(f"erase tenant {tenant}: its keys, traces, features, adapters and runs?", abort=True)
    job = call(settings, "DELETE", f"/v1/tenants/{tenant}")
    deadline = time.monotonic() + wait
    while job["state"] != "done" and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        job = call(settings, "GET", f"/v1/jobs/{job['id']}")
    if as_json:
        print_json(job)
    else:
        _show_erasure(job)
    if job["state"] != "done":
        raise typer.Exit(FAILED)


@app.command(name="erasures")
@with_settings(*ADMIN_FIELDS)
def list_erasures(settings: Settings, as_json: AsJson = False) -> None:
    """List every erasure: who asked, when, how far it is, what it waits for."""
    items = call_list(settings, "/v1/erasures")
    if as_json:
        print_json(items)
        return
    print_table(
        ("JOB", "TENANT", "STATE", "ASKED BY", "ASKED", "DONE", "KAFKA'S BYTES GONE BY", "WAITING"),
        (
            (
                item["id"],
                item["tenant"],
                item["state"],
                item["requested_by"],
                when(item["requested_at"]),
                when(item["finished_at"]),
                when(item["kafka_gone_by"]),
                item["waiting"],
            )
            for item in items
        ),
    )


@app.command(name="decisions")
@with_settings(*ADMIN_FIELDS)
def list_decisions(settings: Settings, tenant: TenantId, as_json: AsJson = False) -> None:
    """List what was decided about a tenant and why, newest first."""
    items = call_list(settings, f"/v1/tenants/{tenant}/decisions")
    if as_json:
        print_json(items)
        return
    print_table(
        ("WHEN", "WHAT", "BY", "SERVES", "WHY"),
        (
            (
                when(item["decided_at"]),
                item["kind"],
                item["actor"],
                drafter(item["champion"]),
                item["reason"],
            )
            for item in items
        ),
    )


@app.command(name="audit")
@with_settings(*ADMIN_FIELDS)
def show_audit(
    settings: Settings,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most entries shown.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show who changed what through the admin API, newest first."""
    items = call(settings, "GET", f"/v1/audit?limit={limit}")["data"]
    if as_json:
        print_json(items)
        return
    print_table(
        ("WHEN", "WHO", "SCOPE", "WHAT", "TENANT"),
        ((when(item["at"]), item["actor"], item["scope"], item["action"], item["tenant"]) for item in items),
    )


@app.command(name="check-erased")
@with_settings("home", "log_url", "store_url", "database_url", "tracking_url", "tracking_backend_url")
def check_erased(settings: Settings, tenant: TenantId, as_json: AsJson = False) -> None:
    """Look for an erased tenant in every place that held its data; exit code 1 if anything is left.

    Run it where the state directory is; log, store, database and MLflow are reached by their URLs.
    """
    from adaptive.cli.erased import prove_erased  # noqa: PLC0415  loads what it looks into
    from adaptive.cli.traces.common import must_exist  # noqa: PLC0415  same

    must_exist(settings.resolved_log_url)
    proof = prove_erased(settings, tenant)
    erased = proof.erased
    gone_by = erased.kafka_gone_by if erased is not None else None
    if as_json:
        findings = [finding._asdict() | {"passed": finding.passed} for finding in proof.findings]
        print_json({"tenant": tenant, "passed": proof.passed, "kafka_gone_by": gone_by, "places": findings})
    else:
        rows = (
            (one.place, "?" if one.left is None else one.left, "PASS" if one.passed else "FAIL", one.detail)
            for one in proof.findings
        )
        print_table(("PLACE", "LEFT", "", ""), rows)
        if erased is None:
            typer.echo(f"FAIL: the log knows of no erasure of tenant {tenant}")
        elif gone_by is not None:
            typer.echo(f"Kafka's bytes are gone by {when(gone_by)}; until then no reader is given them")
        elif proof.passed:
            typer.echo(f"nothing of tenant {tenant} is left")
    if not proof.passed:
        raise typer.Exit(FAILED)


def _show_erasure(job: dict[str, Any]) -> None:
    done = job["state"] == "done"
    typer.echo(f"tenant {job['tenant']} {'erased' if done else 'is being erased'} (job {job['id']})")
    counts = dict(job["removed"])
    for answer in job["answers"]:
        for place, count in answer["removed"].items():
            counts[place] = counts.get(place, 0) + count
    for place, count in counts.items():
        if count:
            typer.echo(f"  {count} from {place}")
    for name in job["retired"]:
        typer.echo(f"  retired: {name}")
    if job["waiting"]:
        typer.echo(f"waiting: {job['waiting']}")
    if job["kafka_gone_by"]:
        typer.echo(f"Kafka's bytes are gone by {when(job['kafka_gone_by'])}")


@keys.command(name="create")
@with_settings(*ADMIN_FIELDS)
def create_key(
    settings: Settings,
    tenant: TenantId,
    scope: Annotated[
        str,
        typer.Option(help="inference opens the endpoint; tenant:read and tenant:write the admin API."),
    ] = "inference",
    as_json: AsJson = False,
) -> None:
    """Make a key and print it; it is shown only now."""
    _show_key(call(settings, "POST", f"/v1/tenants/{tenant}/keys", {"scope": scope}), as_json)


@keys.command(name="rotate")
@with_settings(*ADMIN_FIELDS)
def rotate_key(
    settings: Settings,
    tenant: TenantId,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key id, as `keys list` shows it.")],
    grace_seconds: Annotated[float, typer.Option(help="How long the old key stays valid.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Make a key in place of another and print it; it is shown only now."""
    path = f"/v1/tenants/{tenant}/keys/{key}/rotate"
    _show_key(call(settings, "POST", path, {"grace_seconds": grace_seconds}), as_json)


def _show_key(made: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    typer.echo(f"key {made['id']}, shown only now:", err=True)
    typer.echo(made["key"])


@keys.command(name="list")
@with_settings(*ADMIN_FIELDS)
def list_keys(settings: Settings, tenant: TenantId, as_json: AsJson = False) -> None:
    """List the valid keys of a tenant."""
    items = call_list(settings, f"/v1/tenants/{tenant}/keys")
    if as_json:
        print_json(items)
    else:
        rows = (
            (
                item["id"],
                item["scope"],
                f"{item['prefix']}…",
                when(item["created_at"]),
                when(item["expires_at"]),
            )
            for item in items
        )
        print_table(("KEY", "SCOPE", "BEGINS WITH", "CREATED", "ENDS"), rows)


@keys.command(name="revoke")
@with_settings(*ADMIN_FIELDS)
def revoke_key(
    settings: Settings,
    tenant: TenantId,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key id, as `keys list` shows it.")],
) -> None:
    """Revoke a key; endpoints refuse it within seconds."""
    call(settings, "DELETE", f"/v1/tenants/{tenant}/keys/{key}")
    typer.echo(f"key {key} revoked")


def _quotas(item: dict[str, Any]) -> str | None:
    units = {
        "requests_per_minute": "requests/min",
        "tokens_per_minute": "tokens/min",
        "concurrent_requests": "at once",
    }
    return ", ".join(f"{item[name]} {unit}" for name, unit in units.items() if item[name] is not None) or None
