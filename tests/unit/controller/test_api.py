"""The admin API: routes, errors, keys."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import select
from starlette.routing import Route

from controller import rates
from controller.authentication import is_open
from controller.models import Key

if TYPE_CHECKING:
    from tests.unit.controller.conftest import Bench

BODIES: dict[str, Any] = {"/v1/tenants/{tenant_id}/promote": {"version": 1}}
INTERFACE = {
    ("POST", "/v1/tenants"),
    ("GET", "/v1/tenants"),
    ("GET", "/v1/tenants/{tenant_id}"),
    ("PATCH", "/v1/tenants/{tenant_id}"),
    ("POST", "/v1/tenants/{tenant_id}/keys"),
    ("DELETE", "/v1/tenants/{tenant_id}/keys/{key_id}"),
    ("GET", "/v1/tenants/{tenant_id}/versions"),
    ("GET", "/v1/tenants/{tenant_id}/decisions"),
    ("POST", "/v1/tenants/{tenant_id}/promote"),
    ("POST", "/v1/tenants/{tenant_id}/rollback"),
    ("GET", "/v1/engines"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
}


def routes(bench: Bench) -> set[tuple[str, str]]:
    """Every method and path the application has registered."""
    found = set()
    for route in bench.app.routes:
        assert isinstance(route, Route)
        found |= {(method, route.path) for method in route.methods or {"GET"} if method != "HEAD"}
    return found


def is_problem(response: Any, status: int) -> Any:
    """Check that a response is problem details of this status, and return them."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["type"].startswith("urn:adaptive:problem:")
    assert body["title"]
    assert body["detail"]
    return body


def test_the_documented_interface_is_there(bench: Bench) -> None:
    """Every route that users and scripts rely on is registered."""
    assert routes(bench) >= INTERFACE


def test_every_registered_route_needs_a_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No route but the health checks answers without the right key, nor says whether it exists."""
    monkeypatch.setattr(rates, "WRONG_KEYS_PER_SECOND", 1e6)
    paths = routes(bench) | {("GET", "/not/there")}
    assert len(paths) > 10
    for method, path in sorted(paths):
        url = path.replace("{tenant_id}", "acme").replace("{key_id}", "key_1")
        for wrong in ("", "Bearer wrong", "Bearer", "Basic adm_test", "Bearer adm_tes", "Bearer ü"):
            headers = {b"Authorization": wrong.encode()}
            response = bench.client.request(method, url, headers=headers)
            if is_open(path):
                assert response.status_code != 401
            else:
                assert is_problem(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"


def test_every_tenant_route_says_which_tenant_is_unknown(bench: Bench) -> None:
    """A wrong tenant id is a 404 that names it and how to find the right one, wherever one is taken."""
    seen = 0
    for route in bench.app.routes:
        if not isinstance(route, APIRoute) or not route.path.startswith("/v1/tenants/{tenant_id}"):
            continue
        for method in route.methods:
            url = route.path.format_map({"tenant_id": "nobody", "key_id": "key_1", "version": 1})
            body = BODIES.get(route.path, {} if method == "PATCH" else None)
            problem = is_problem(bench.client.request(method, url, json=body), 404)
            assert "'nobody'" in problem["detail"]
            assert "GET /v1/tenants" in problem["detail"]
            seen += 1
    assert seen >= 8


def test_a_new_tenant_is_served_by_turbo_and_announced(bench: Bench) -> None:
    """Creating a tenant answers 201 and tells endpoints, learners and engines of it."""
    body = bench.request("POST", "/v1/tenants", {"id": "acme", "learn": True}, 201)
    assert (body["id"], body["learn"], body["state"], body["champion"]) == ("acme", True, "active", None)
    assert body["lift"] is None
    assert body["tau"] is None
    assert bench.accounts()["acme"].learn is True
    policy = bench.policies()["acme"]
    assert (policy.champion, policy.policy_version, policy.control_share) == (None, 1, 0.05)


def test_learning_is_off_unless_asked_for(bench: Bench) -> None:
    """Consent is off by default."""
    body = bench.request("POST", "/v1/tenants", {"id": "acme"}, 201)
    assert body["learn"] is False
    assert bench.accounts()["acme"].learn is False


def test_a_taken_name_is_a_conflict(bench: Bench) -> None:
    """A second tenant of the same name changes nothing."""
    bench.create()
    assert "'acme'" in is_problem(bench.client.post("/v1/tenants", json={"id": "acme"}), 409)["detail"]
    assert bench.tenant()["learn"] is True
    assert bench.tenant()["revision"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v1/tenants", {}, "id"),
        ("POST", "/v1/tenants", {"id": "../etc"}, "id"),
        ("POST", "/v1/tenants", {"id": "Ä"}, "id"),
        ("POST", "/v1/tenants", {"id": "a\n"}, "id"),
        ("POST", "/v1/tenants", {"id": "a" * 64}, "id"),
        ("POST", "/v1/tenants", {"id": 3}, "id"),
        ("POST", "/v1/tenants", {"id": "b", "learn": "yes"}, "learn"),
        ("POST", "/v1/tenants", {"id": "b", "lern": True}, "lern"),
        ("POST", "/v1/tenants", [], "body"),
        ("PATCH", "/v1/tenants/acme", {"learn": None}, "learn"),
        ("PATCH", "/v1/tenants/acme", {"control_share": 1.5}, "control_share"),
        ("PATCH", "/v1/tenants/acme", {"control_share": 0.7, "off_share": 0.7}, "control_share"),
        ("PATCH", "/v1/tenants/acme", {"weight": -0.1}, "weight"),
        ("PATCH", "/v1/tenants/acme", {"max_lookahead": 9}, "max_lookahead"),
        ("PATCH", "/v1/tenants/acme", {"max_lookahead": True}, "max_lookahead"),
        ("PATCH", "/v1/tenants/acme", {"pin": 7}, "pin"),
        ("PATCH", "/v1/tenants/acme", {"state": "asleep"}, "state"),
        ("POST", "/v1/tenants/acme/promote", {"version": 0}, "version"),
        ("GET", "/v1/tenants?limit=0", None, "limit"),
        ("GET", "/v1/tenants/acme/versions?after=x", None, "after"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    bench: Bench, method: str, path: str, body: Any, field: str
) -> None:
    """A 422 names the field and the remedy, and nothing is changed."""
    bench.create()
    before = bench.tenant()
    problem = is_problem(bench.client.request(method, path, json=body), 422)
    assert problem["errors"][0]["field"] == field
    assert ": " in problem["errors"][0]["detail"]
    assert bench.tenant() == before
    assert bench.request("GET", "/v1/tenants")["data"][0]["id"] == "acme"
    assert len(bench.request("GET", "/v1/tenants")["data"]) == 1


def test_a_body_that_is_no_json_is_refused(bench: Bench) -> None:
    """Broken JSON is a 422 about the body."""
    response = bench.client.post(
        "/v1/tenants", content=b"{nope", headers={"content-type": "application/json"}
    )
    assert is_problem(response, 422)["errors"][0]["field"] == "body"


def test_unknown_paths_and_methods_are_problems(bench: Bench) -> None:
    """404 and 405 of the framework have the same shape as our own errors."""
    assert "/v1/nope" in is_problem(bench.client.get("/v1/nope"), 404)["detail"]
    assert is_problem(bench.client.delete("/v1/engines"), 405)


def test_a_failure_is_a_problem_and_tells_nothing_inside(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen error is a 500 problem without its message, which might hold anything."""

    def fail() -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(bench.control.metrics, "render", fail)
    problem = is_problem(bench.client.get("/metrics"), 500)
    assert "RuntimeError" in problem["detail"]
    assert "secret" not in problem["detail"]


def test_a_key_is_shown_once_and_only_its_hash_is_kept(bench: Bench) -> None:
    """The key is in the response of its creation and in no list, table or message."""
    bench.create()
    made = bench.request("POST", "/v1/tenants/acme/keys", status=201)
    secret = made["key"]
    assert secret.startswith("adp_")
    assert len(secret) >= 47
    digest = hashlib.sha256(secret.encode()).hexdigest()
    assert bench.accounts()["acme"].key_hashes == [digest]
    listed = bench.client.get("/v1/tenants/acme/keys")
    assert listed.json()["data"] == [
        {
            "id": made["id"],
            "object": "key",
            "prefix": secret[:12],
            "scope": "inference",
            "created_at": made["created_at"],
            "expires_at": None,
        }
    ]
    with bench.control.database.read() as session:
        assert session.scalars(select(Key.sha256)).all() == [digest]
    for file in bench.settings.home.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()


def test_a_revoked_key_is_gone(bench: Bench) -> None:
    """Revoking one key leaves the other, and cannot be done twice or through another tenant."""
    bench.create()
    bench.create("other")
    first = bench.request("POST", "/v1/tenants/acme/keys", status=201)
    second = bench.request("POST", "/v1/tenants/acme/keys", status=201)
    is_problem(bench.client.delete(f"/v1/tenants/other/keys/{first['id']}"), 404)
    bench.request("DELETE", f"/v1/tenants/acme/keys/{first['id']}", status=204)
    assert bench.accounts()["acme"].key_hashes == [hashlib.sha256(second["key"].encode()).hexdigest()]
    assert is_problem(bench.client.delete(f"/v1/tenants/acme/keys/{first['id']}"), 404)
    assert [item["id"] for item in bench.request("GET", "/v1/tenants/acme/keys")["data"]] == [second["id"]]


def test_a_patch_changes_what_it_names_and_announces_it(bench: Bench) -> None:
    """Account fields reach endpoints and learners, policy fields reach engines, each once."""
    bench.create()
    bench.request("PATCH", "/v1/tenants/acme", {"learn": False, "state": "suspended"})
    account = bench.accounts()["acme"]
    assert (account.revision, account.learn, account.state, account.share) == (2, False, "suspended", False)
    assert bench.policies()["acme"].policy_version == 1
    shown = bench.request("PATCH", "/v1/tenants/acme", {"weight": 0.5, "max_lookahead": 2, "off_share": 0})
    policy = bench.policies()["acme"]
    assert (policy.policy_version, policy.weight, policy.max_lookahead, policy.off_share) == (2, 0.5, 2, 0.0)
    assert (shown["lookahead"], shown["weights"]) == (2, {"off": 0.0, "turbo": 1.0})
    assert bench.accounts()["acme"].revision == 2
    assert bench.decisions()[0]["kind"] == "configure"
    assert "max_lookahead = 2" in bench.decisions()[0]["reason"]


def test_quotas_reach_endpoints(bench: Bench) -> None:
    """They are part of the account; 0 admits nothing, null takes a limit away, nothing else is a quota."""
    bench.create()
    assert bench.accounts()["acme"].requests_per_minute is None
    quotas = {"requests_per_minute": 60, "tokens_per_minute": 0, "concurrent_requests": 4}
    shown = bench.request("PATCH", "/v1/tenants/acme", quotas)
    assert quotas.items() <= shown.items()
    account = bench.accounts()["acme"]
    assert account.requests_per_minute == 60
    assert (account.tokens_per_minute, account.concurrent_requests) == (0, 4)
    bench.request("PATCH", "/v1/tenants/acme", {"tokens_per_minute": None})
    assert bench.accounts()["acme"].tokens_per_minute is None
    for name in quotas:
        for wrong in (-1, 1.5, True, "60"):
            bench.request("PATCH", "/v1/tenants/acme", {name: wrong}, 422)


def test_a_patch_that_changes_nothing_decides_nothing(bench: Bench) -> None:
    """Repeating a patch is free: no message, no decision."""
    bench.create()
    bench.request("PATCH", "/v1/tenants/acme", {"weight": 0.5, "freeze": True})
    before = (bench.tenant(), bench.decisions())
    bench.request("PATCH", "/v1/tenants/acme", {"weight": 0.5, "freeze": True})
    bench.request("PATCH", "/v1/tenants/acme", {})
    assert (bench.tenant(), bench.decisions()) == before


def test_lists_come_in_pages(bench: Bench) -> None:
    """Following last_id visits every tenant once."""
    names = [f"tenant-{number}" for number in range(5)]
    for name in reversed(names):
        bench.create(name)
    seen: list[str] = []
    path = "/v1/tenants?limit=2"
    while True:
        page = bench.request("GET", path)
        seen += [item["id"] for item in page["data"]]
        assert page["object"] == "list"
        assert page["first_id"] == page["data"][0]["id"]
        if not page["has_more"]:
            break
        path = f"/v1/tenants?limit=2&after={page['last_id']}"
    assert seen == names


def test_versions_and_decisions_come_in_pages_newest_first(bench: Bench) -> None:
    """The newest version and decision come first, and cursors go on from there."""
    bench.create()
    for version in (1, 2, 3):
        bench.publish(version)
    page = bench.request("GET", "/v1/tenants/acme/versions?limit=2")
    assert [item["version"] for item in page["data"]] == [3, 2]
    assert page["has_more"] is True
    rest = bench.request("GET", f"/v1/tenants/acme/versions?limit=2&after={page['last_id']}")
    assert [item["version"] for item in rest["data"]] == [1]
    decisions = bench.request("GET", "/v1/tenants/acme/decisions?limit=3")
    assert [item["version"] for item in decisions["data"]] == [3, 2, 1]
    last = bench.request("GET", f"/v1/tenants/acme/decisions?after={decisions['last_id']}")
    assert [item["kind"] for item in last["data"]] == ["create"]


def test_metrics_count_requests_by_route_and_status(bench: Bench) -> None:
    """Labels are route templates and never a tenant, a key or an unknown path."""
    bench.create("very-private")
    bench.client.get("/v1/tenants/very-private")
    bench.client.get("/made/up/path")
    bench.client.get("/v1/tenants", headers={"Authorization": "Bearer wrong"})
    text = bench.client.get("/metrics").text
    assert 'requests_total{method="GET",route="/v1/tenants/{tenant_id}",status="200"} 1.0' in text
    assert 'requests_total{method="any",route="unmatched",status="404"} 1.0' in text
    assert 'requests_total{method="any",route="unmatched",status="401"} 1.0' in text
    assert 'adaptive_control_decisions_total{kind="create"} 1.0' in text
    assert "very-private" not in text
    assert "made" not in text


def test_readiness_follows_the_workers(bench: Bench) -> None:
    """Healthy from the start, ready only while both workers get their rounds done."""
    assert bench.request("GET", "/healthz") == {"status": "ok"}
    assert "not started" in is_problem(bench.client.get("/readyz"), 503)["detail"]
    with bench.client:
        for _ in range(100):
            if bench.client.get("/readyz").status_code == 200:
                break
            bench.control.policy._stopping.wait(0.05)
        assert bench.request("GET", "/readyz") == {"status": "ready"}
