"""`adaptive tenants` and `adaptive drafters` against a real controller."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result


@pytest.mark.usefixtures("controller")
def test_the_life_of_a_tenant(adaptive: Callable[..., Result]) -> None:
    """Create, list, show, patch and keys do what they say."""

    def run(*arguments: str) -> str:
        result = adaptive(*arguments)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert run("tenants", "create", "acme", "--learn") == "tenant acme created, learning on\n"
    run("tenants", "create", "other")
    listed = run("tenants", "list")
    assert [line.split()[:3] for line in listed.splitlines()] == [
        ["TENANT", "STATE", "LEARN"],
        ["acme", "active", "yes"],
        ["other", "active", "no"],
    ]
    run("tenants", "patch", "acme", "--no-learn", "--pin", "0", "--max-lookahead", "2")
    shown: Any = json.loads(run("tenants", "show", "acme", "--json"))
    assert (shown["learn"], shown["pin"], shown["lookahead"]) == (False, 0, 2)
    assert "serves      turbo since" in run("tenants", "show", "acme")
    run("tenants", "patch", "acme", "--unpin")
    assert json.loads(run("tenants", "show", "acme", "--json"))["pin"] is None

    run("tenants", "patch", "acme", "--requests-per-minute", "60", "--concurrent-requests", "4")
    assert "quotas      60 requests/min, 4 at once" in run("tenants", "show", "acme")
    run("tenants", "patch", "acme", "--unlimited", "--tokens-per-minute", "5000")
    shown = json.loads(run("tenants", "show", "acme", "--json"))
    quotas = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
    assert [shown[name] for name in quotas] == [None, 5000, None]

    key = run("tenants", "keys", "create", "acme").strip()
    assert key.startswith("adp_")
    (listed_key,) = json.loads(run("tenants", "keys", "list", "acme", "--json"))
    assert key not in run("tenants", "keys", "list", "acme")
    newer = run("tenants", "keys", "rotate", "acme", listed_key["id"]).strip()
    assert newer.startswith("adp_")
    assert newer != key
    (listed_key,) = json.loads(run("tenants", "keys", "list", "acme", "--json"))
    run("tenants", "keys", "revoke", "acme", listed_key["id"])
    assert run("tenants", "keys", "create", "acme", "--scope", "tenant:read").startswith("adt_")
    (listed_key,) = json.loads(run("tenants", "keys", "list", "acme", "--json"))
    run("tenants", "keys", "revoke", "acme", listed_key["id"])
    assert "configure" in run("tenants", "decisions", "acme")
    assert "POST /v1/tenants/{tenant_id}/keys/{key_id}/rotate" in run("tenants", "audit")
    assert json.loads(run("tenants", "keys", "list", "acme", "--json")) == []
    assert run("drafters", "list", "acme").startswith("VERSION")

    reported = run("report")
    assert reported.split()[0] == "TENANT"
    assert "all tenants: 0.0 s of training, 0.0 s of engine time saved" in reported
    rows = json.loads(run("report", "--json"))
    assert [(row["tenant"], row["engine_seconds_saved"]) for row in rows] == [("acme", None), ("other", None)]


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("tenants", "show", "nobody"), 1, "unknown tenant 'nobody'"),
        (("tenants", "create", "Not A Name"), 1, "id: must match"),
        (("tenants", "patch", "acme"), 2, "nothing to change"),
        (("tenants", "patch", "acme", "--pin", "1", "--unpin"), 2, "exclude each other"),
        (("drafters", "rollback", "nobody"), 1, "unknown tenant"),
        (("drafters", "promote", "nobody", "3"), 1, "unknown tenant"),
        (("drafters", "list", "nobody"), 1, "unknown tenant"),
    ],
)
def test_errors_of_the_controller_are_one_line(
    adaptive: Callable[..., Result], arguments: tuple[str, ...], code: int, said: str
) -> None:
    """What the API says is wrong is what the command prints."""
    result = adaptive(*arguments)
    assert result.exit_code == code
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


def test_a_controller_that_is_not_there_is_named(
    adaptive: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a controller the line says where it was looked for and how to start it."""
    assert "no admin key in" in adaptive("tenants", "list").stderr
    monkeypatch.setenv("ADAPTIVE_ADMIN_KEY", "adm")
    result = adaptive("tenants", "list", "--control-port", "1")
    assert result.exit_code == 1
    assert "http://127.0.0.1:1" in result.stderr
    assert "adaptive control" in result.stderr


@pytest.mark.usefixtures("controller")
def test_a_wrong_admin_key_is_said(adaptive: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the setting that holds the key."""
    monkeypatch.setenv("ADAPTIVE_ADMIN_KEY", "wrong")
    result = adaptive("tenants", "list")
    assert result.exit_code == 1
    assert "ADAPTIVE_ADMIN_KEY" in result.stderr
