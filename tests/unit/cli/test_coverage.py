"""Whatever the admin API can do, the typed client and the command line can do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from controller.client import ControlClient, ControlRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

DESCRIPTION = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text())
ROUTES: Final = sorted(
    f"{method.upper()} {path}" for path, methods in DESCRIPTION["paths"].items() for method in methods
)
NEITHER: Final = {
    "GET /healthz": "for whatever restarts the process",
    "GET /readyz": "for load balancers; `adaptive doctor` asks it",
    "GET /metrics": "for Prometheus, in its own format",
}
CLIENT: Final[dict[str, Callable[[ControlClient], Any]]] = {
    "GET /v1/audit": lambda client: client.audit(),
    "GET /v1/decisions": lambda client: list(client.decisions()),
    "GET /v1/engines": lambda client: list(client.engines()),
    "GET /v1/erasures": lambda client: list(client.erasures()),
    "GET /v1/jobs/{job_id}": lambda client: client.job("erase_1"),
    "GET /v1/learners": lambda client: list(client.learners()),
    "GET /v1/rollouts": lambda client: list(client.rollouts()),
    "GET /v1/tenants": lambda client: list(client.tenants()),
    "POST /v1/tenants": lambda client: client.create_tenant("acme"),
    "DELETE /v1/tenants/{tenant_id}": lambda client: client.erase_tenant("acme"),
    "GET /v1/tenants/{tenant_id}": lambda client: client.tenant("acme"),
    "PATCH /v1/tenants/{tenant_id}": lambda client: client.patch_tenant("acme", learn=True),
    "GET /v1/tenants/{tenant_id}/decisions": lambda client: list(client.decisions("acme")),
    "GET /v1/tenants/{tenant_id}/keys": lambda client: list(client.keys("acme")),
    "POST /v1/tenants/{tenant_id}/keys": lambda client: client.create_key("acme"),
    "DELETE /v1/tenants/{tenant_id}/keys/{key_id}": lambda client: client.revoke_key("acme", "key_1"),
    "POST /v1/tenants/{tenant_id}/keys/{key_id}/rotate": lambda client: client.rotate_key("acme", "key_1"),
    "POST /v1/tenants/{tenant_id}/promote": lambda client: client.promote("acme", 1),
    "POST /v1/tenants/{tenant_id}/rollback": lambda client: client.rollback("acme"),
    "GET /v1/tenants/{tenant_id}/rollouts": lambda client: list(client.rollouts("acme")),
    "GET /v1/tenants/{tenant_id}/rollouts/{version}": lambda client: client.rollout("acme", 1),
    "POST /v1/tenants/{tenant_id}/rollouts/{version}/abort": lambda client: client.abort_rollout("acme", 1),
    "GET /v1/tenants/{tenant_id}/series": lambda client: client.series("acme"),
    "GET /v1/tenants/{tenant_id}/versions": lambda client: list(client.versions("acme")),
    "DELETE /v1/tenants/{tenant_id}/versions/{version}": lambda client: client.delete_version("acme", 1),
    "GET /v1/tenants/{tenant_id}/versions/{version}": lambda client: client.version("acme", 1),
}
COMMANDS: Final = {
    "GET /v1/audit": "tenants audit",
    "GET /v1/decisions": "decisions list",
    "GET /v1/engines": "engines list",
    "GET /v1/erasures": "jobs list",
    "GET /v1/jobs/{job_id}": "jobs show erase_1",
    "GET /v1/learners": "learners list",
    "GET /v1/rollouts": "rollouts list",
    "GET /v1/tenants": "tenants list",
    "POST /v1/tenants": "tenants create acme",
    "DELETE /v1/tenants/{tenant_id}": "tenants erase acme --yes",
    "GET /v1/tenants/{tenant_id}": "tenants show acme",
    "PATCH /v1/tenants/{tenant_id}": "tenants patch acme --learn",
    "GET /v1/tenants/{tenant_id}/decisions": "decisions list --tenant acme",
    "GET /v1/tenants/{tenant_id}/keys": "tenants keys list acme",
    "POST /v1/tenants/{tenant_id}/keys": "tenants keys create acme",
    "DELETE /v1/tenants/{tenant_id}/keys/{key_id}": "tenants keys revoke acme key_1",
    "POST /v1/tenants/{tenant_id}/keys/{key_id}/rotate": "tenants keys rotate acme key_1",
    "POST /v1/tenants/{tenant_id}/promote": "drafters promote acme 1",
    "POST /v1/tenants/{tenant_id}/rollback": "drafters rollback acme",
    "GET /v1/tenants/{tenant_id}/rollouts": "rollouts list --tenant acme",
    "GET /v1/tenants/{tenant_id}/rollouts/{version}": "rollouts show acme 1",
    "POST /v1/tenants/{tenant_id}/rollouts/{version}/abort": "rollouts abort acme 1",
    "GET /v1/tenants/{tenant_id}/series": "series show acme",
    "GET /v1/tenants/{tenant_id}/versions": "drafters list acme",
    "DELETE /v1/tenants/{tenant_id}/versions/{version}": "drafters delete acme 1 --yes",
    "GET /v1/tenants/{tenant_id}/versions/{version}": "drafters show acme 1",
}


def matches(route: str, called: str) -> bool:
    """Whether a call goes to a route: `{name}` stands for one part of the path."""
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route), called) is not None


def test_every_route_has_a_method_and_a_command() -> None:
    """A route that is added to the description without both, or without a reason here, is found."""
    assert sorted(CLIENT.keys() | NEITHER.keys()) == ROUTES
    assert sorted(COMMANDS.keys() | NEITHER.keys()) == ROUTES


@pytest.mark.parametrize("route", CLIENT)
def test_the_clients_method_calls_its_route(route: str) -> None:
    """Each method of the client asks for just the path that the description has."""
    called: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        called.append(f"{request.method} {request.url.path}")
        return httpx.Response(418, json={"detail": "seen"})

    with (
        ControlClient("http://controller", "adm_x", httpx.MockTransport(answer)) as client,
        pytest.raises(ControlRefusedError, match="seen"),
    ):
        CLIENT[route](client)
    assert [matches(route, one) for one in called] == [True]


@pytest.mark.parametrize("route", COMMANDS)
def test_the_command_calls_its_route(
    route: str, adaptive: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command asks for its route, and a refusal is one clear line and exit code 1."""
    called: list[str] = []

    def request(_client: ControlClient, method: str, path: str, *_body: Any, **_more: Any) -> Any:
        called.append(f"{method} {path.partition('?')[0]}")
        raise ControlRefusedError(418, "seen by the test")

    monkeypatch.setenv("ADAPTIVE_ADMIN_KEY", "adm_x")
    monkeypatch.setattr(ControlClient, "request", request)
    result = adaptive(*COMMANDS[route].split())
    assert result.exit_code == 1, result.output
    assert "seen by the test" in result.stderr
    assert [matches(route, one) for one in called] == [True]
