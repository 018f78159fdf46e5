"""Who may do what, how often, how long a body is, and what a repeated request is answered."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import structlog
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from controller import rates
from controller.authentication import is_open
from controller.bounding import JSON_BYTES
from controller.identity import ADMIN, Principal, Scope, required_scope
from controller.models import Answer
from controller.rates import RateLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.controller.conftest import Bench

WRITES = {"POST", "PATCH", "DELETE", "PUT"}


def routes(bench: Bench) -> Iterator[tuple[str, APIRoute]]:
    """Every method and route of the API, but the health checks."""
    for route in bench.app.routes:
        if isinstance(route, APIRoute) and not is_open(route.path):
            for method in sorted(route.methods):
                yield method, route


def token(bench: Bench, scope: str, tenant: str = "acme") -> dict[str, str]:
    """Headers with a new key of a scope."""
    made = bench.request("POST", f"/v1/tenants/{tenant}/keys", {"scope": scope}, 201)
    return {"Authorization": f"Bearer {made['key']}"}


def fill(path: str, tenant: str) -> str:
    """Put ids into a route's template."""
    ids = {"tenant_id": tenant, "key_id": "key_1", "job_id": "erase_1", "version": 1}
    return path.format_map(ids)


def test_every_route_is_open_to_its_scope_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks every route with a key of every scope, for its own tenant, another's and a missing one."""
    monkeypatch.setattr(rates, "WRONG_KEYS_PER_SECOND", 1e6)
    for tenant in ("acme", "other"):
        bench.create(tenant)
    keys = {scope: token(bench, scope) for scope in ("inference", "tenant:read", "tenant:write")}
    seen: dict[str, int] = {}
    for method, route in routes(bench):
        required = required_scope(route.endpoint)
        seen[required] = seen.get(required, 0) + 1
        if required is not Scope.ADMIN:
            assert route.path.startswith("/v1/tenants/{tenant_id}")
        if method in WRITES:
            assert required is not Scope.TENANT_READ, f"{method} {route.path} changes something"
        for scope, headers in keys.items():
            for tenant in ("acme", "other", "nobody"):
                answer = bench.client.request(method, fill(route.path, tenant), headers=headers, json={})
                allowed = tenant == "acme" and (
                    required is Scope.TENANT_READ
                    or (required is Scope.TENANT_WRITE and scope == "tenant:write")
                )
                if scope == "inference":
                    assert answer.status_code == 401
                elif allowed and scope != "inference":
                    assert answer.status_code not in {401, 403}, f"{scope} {method} {route.path}"
                else:
                    assert answer.status_code == 403, f"{scope} {method} {route.path} {tenant}"
                    assert "other" not in answer.text
    assert seen[Scope.ADMIN] >= 8
    assert seen[Scope.TENANT_READ] >= 5
    assert seen[Scope.TENANT_WRITE] >= 5


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(
    name=st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="/?#%\\"), min_size=1, max_size=40),
        st.sampled_from(["victim", "VICTIM", "victim ", "./victim", "acme/../victim", "acme%2f..%2fvictim"]),
        st.sampled_from(["victim%00", "acme\x00victim", "acme'--", "acme' OR '1'='1", "%2e%2e/victim", "*"]),
    )
)
def test_no_tenant_id_reaches_another_tenants_data(bench: Bench, name: str) -> None:
    """Whatever stands in the path or the query, a tenant's key is never answered with another's canary."""
    if bench.client.get("/v1/tenants/victim").status_code == 404:
        for tenant in ("acme", "victim"):
            bench.create(tenant)
        bench.publish(1, "victim", sha256="ca9a" * 16)
        bench.app.state.acme = token(bench, "tenant:read")
    headers = bench.app.state.acme
    for rest in ("", "/keys", "/versions", "/decisions", "/series"):
        path = f"/v1/tenants/{quote(name, safe='%/.')}{rest}"
        answer = bench.client.get(path, headers=headers, params={"after": name})
        assert answer.status_code in {200, 403, 404, 405, 422}, answer.text
        assert "ca9a" not in answer.text
        if answer.status_code == 200 and rest == "":
            assert answer.json().get("id", "acme") == "acme"


def test_a_tenant_changes_what_is_its_own_and_no_quota(bench: Bench) -> None:
    """Its key switches learning; what costs others something is the operator's; decisions say who it was."""
    bench.create()
    headers = token(bench, "tenant:write")
    answer = bench.client.patch("/v1/tenants/acme", json={"learn": False}, headers=headers)
    assert answer.status_code == 200
    assert bench.decisions()[0]["actor"] == "tenant"
    for field, value in (("requests_per_minute", None), ("state", "active"), ("control_share", 0.0)):
        answer = bench.client.patch("/v1/tenants/acme", json={field: value}, headers=headers)
        assert answer.status_code == 403
        assert field in answer.json()["detail"]


def test_a_key_of_the_api_does_not_open_the_endpoint(bench: Bench) -> None:
    """Only keys of scope inference are announced, and a revoked key of the API is refused at once."""
    bench.create()
    made = bench.request("POST", "/v1/tenants/acme/keys", {"scope": "tenant:read"}, 201)
    assert made["key"].startswith("adt_")
    assert bench.accounts()["acme"].key_hashes == []
    headers = {"Authorization": f"Bearer {made['key']}"}
    assert bench.client.get("/v1/tenants/acme", headers=headers).status_code == 200
    bench.request("DELETE", f"/v1/tenants/acme/keys/{made['id']}", status=204)
    assert bench.client.get("/v1/tenants/acme", headers=headers).status_code == 401


def test_a_rotated_key_ends_when_its_grace_is_over(bench: Bench) -> None:
    """Both keys open the endpoint meanwhile; then the old one is revoked without anyone asking."""
    bench.create()
    old = bench.request("POST", "/v1/tenants/acme/keys", status=201)
    path = f"/v1/tenants/acme/keys/{old['id']}/rotate"
    new = bench.request("POST", path, {"grace_seconds": 60}, 201)
    assert len(bench.accounts()["acme"].key_hashes) == 2
    assert "rotated before" in bench.request("POST", path, status=409)["detail"]
    bench.clock.now += 61
    bench.control.policy._pruned_at = 0.0
    bench.work()
    assert len(bench.accounts()["acme"].key_hashes) == 1
    assert [item["id"] for item in bench.request("GET", "/v1/tenants/acme/keys")["data"]] == [new["id"]]
    bench.request("POST", f"/v1/tenants/acme/keys/{new['id']}/rotate", status=201)
    assert len(bench.accounts()["acme"].key_hashes) == 1


def test_no_key_is_ever_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Neither made, used, rotated nor wrong keys are in a log line, the audit log or the database."""
    lines = io.StringIO()
    caplog.set_level(logging.DEBUG)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(lines))
    try:
        bench.create()
        secrets = []
        headers = {"Idempotency-Key": "once"}
        for scope in ("inference", "tenant:write"):
            body = {"scope": scope}
            answer = bench.client.post(
                "/v1/tenants/acme/keys", json=body, headers=headers | {"Idempotency-Key": scope}
            )
            secrets.append(answer.json()["key"])
            bench.client.get("/v1/tenants/acme", headers={"Authorization": f"Bearer {secrets[-1]}"})
            rotated = bench.request("POST", f"/v1/tenants/acme/keys/{answer.json()['id']}/rotate", None, 201)
            secrets.append(rotated["key"])
        bench.client.get("/v1/tenants/acme", headers={"Authorization": "Bearer adt_wrong-one"})
        bench.work()
    finally:
        structlog.reset_defaults()
    said = lines.getvalue() + caplog.text + bench.client.get("/v1/audit").text
    for secret in (*secrets, "adt_wrong-one", "adm_test"):
        assert secret not in said
    for file in bench.settings.home.rglob("control.db*"):
        assert not any(secret.encode() in file.read_bytes() for secret in secrets)


def test_a_repeated_request_is_answered_and_not_done_again(bench: Bench) -> None:
    """Same key and request: the first answer, marked; another request: 422; no secret is shown again."""
    bench.create()
    headers = {"Idempotency-Key": "7f3a"}
    first = bench.client.post("/v1/tenants", json={"id": "new"}, headers=headers)
    again = bench.client.post("/v1/tenants", json={"id": "new"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["idempotency-replayed"] == "true"
    other = bench.client.post("/v1/tenants", json={"id": "newer"}, headers=headers)
    assert other.status_code == 422
    assert other.json()["type"].endswith("idempotency-key-reused")
    made = [bench.client.post("/v1/tenants/acme/keys", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert made[1].json() == made[0].json() | {"key": None}
    assert len(bench.request("GET", "/v1/tenants/acme/keys")["data"]) == 1
    gone = [
        bench.client.delete(
            f"/v1/tenants/acme/keys/{made[0].json()['id']}", headers={"Idempotency-Key": "gone"}
        )
        for _ in range(2)
    ]
    assert [answer.status_code for answer in gone] == [204, 204]
    assert bench.client.post("/v1/tenants", json={}, headers={"Idempotency-Key": "a b"}).status_code == 422


def test_a_failed_request_may_be_repeated_with_its_key(bench: Bench) -> None:
    """Nothing was done, so nothing is kept: the same key works once the cause is gone."""
    headers = {"Idempotency-Key": "later"}
    assert bench.client.post("/v1/tenants/acme/rollback", headers=headers).status_code == 404
    bench.create()
    bench.publish(1)
    assert bench.client.post("/v1/tenants/acme/rollback", headers=headers).status_code == 200
    assert bench.client.post("/v1/tenants/acme/rollback", headers=headers).status_code == 200
    assert len([item for item in bench.decisions() if item["kind"] == "rollback"]) == 1


def test_answers_are_forgotten_after_a_day(bench: Bench) -> None:
    """They are kept long enough for any retry and not for ever; erasing a tenant takes its answers along."""
    bench.create()
    bench.client.patch("/v1/tenants/acme", json={"freeze": True}, headers={"Idempotency-Key": "a"})
    bench.clock.now += 90_000
    bench.control.policy._pruned_at = 0.0
    bench.work()
    with bench.control.database.read() as session:
        assert session.scalars(select(Answer)).all() == []
    bench.client.patch("/v1/tenants/acme", json={"freeze": False}, headers={"Idempotency-Key": "b"})
    bench.request("DELETE", "/v1/tenants/acme", status=202)
    with bench.control.database.read() as session:
        assert session.scalars(select(Answer)).all() == []


def test_a_change_of_what_the_caller_has_not_seen_is_refused(bench: Bench) -> None:
    """An old entity tag in If-Match is a 412 and changes nothing; the right one or * goes through."""
    bench.create()
    tag = bench.client.get("/v1/tenants/acme").headers["etag"]
    changed = bench.client.patch("/v1/tenants/acme", json={"freeze": True}, headers={"If-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag
    bench.publish(1)
    requests: list[tuple[str, str, Any]] = [
        ("PATCH", "", {"freeze": False}),
        ("POST", "/promote", {"version": 1}),
        ("POST", "/rollback", None),
        ("POST", "/keys", None),
        ("DELETE", "", None),
    ]
    for method, path, body in requests:
        answer = bench.client.request(method, f"/v1/tenants/acme{path}", json=body, headers={"If-Match": tag})
        assert answer.status_code == 412, answer.text
        assert tag in answer.json()["detail"]
    assert bench.tenant()["freeze"] is True
    headers = {"If-Match": "*"}
    assert bench.client.patch("/v1/tenants/acme", json={}, headers=headers).status_code == 200


def test_every_change_is_on_the_audit_log_and_takes_an_idempotency_key(bench: Bench) -> None:
    """Who, what and when, newest first, also after an erasure; no route that writes goes without."""
    for method, route in routes(bench):
        if method in WRITES:
            wanted = any(
                "idempotency-key" in {field.alias for field in dependency.header_params}
                for dependency in route.dependant.dependencies
            )
            assert wanted, f"{method} {route.path} takes none"
    bench.create()
    headers = token(bench, "tenant:write")
    bench.client.patch("/v1/tenants/acme", json={"learn": False}, headers=headers)
    bench.request("DELETE", "/v1/tenants/acme", status=202)
    entries = bench.request("GET", "/v1/audit")["data"]
    assert [(item["action"], item["scope"]) for item in entries] == [
        ("DELETE /v1/tenants/{tenant_id}", "admin"),
        ("PATCH /v1/tenants/{tenant_id}", "tenant:write"),
        ("POST /v1/tenants/{tenant_id}/keys", "admin"),
        ("POST /v1/tenants", "admin"),
    ]
    assert entries[1]["actor"].startswith("key_")
    assert entries[1]["details"] == {"learn": False}
    assert entries[1]["request_id"].startswith("req_")
    assert len(bench.request("GET", "/v1/audit?tenant=acme")["data"]) == 3


def test_a_body_that_is_too_long_is_refused(bench: Bench) -> None:
    """Announced or streamed without a length, it ends at the limit with a 413 that names the limit."""

    def stream() -> Iterator[bytes]:
        for _ in range(JSON_BYTES // 1024 + 2):
            yield b" " * 1024

    headers = {"content-type": "application/json"}
    for content in (b" " * (JSON_BYTES + 1), stream()):
        answer = bench.client.post("/v1/tenants", content=content, headers=headers)
        assert answer.status_code == 413
        assert str(JSON_BYTES) in answer.json()["detail"]
        assert answer.json()["type"].endswith("too-large")


def test_too_many_requests_are_told_when_to_come_back(bench: Bench) -> None:
    """Wrong keys run out at their address and say Retry-After; the right key from there still works."""
    wrong = {"Authorization": "Bearer adm_guess"}
    statuses = [bench.client.get("/v1/tenants", headers=wrong) for _ in range(40)]
    assert statuses[0].status_code == 401
    assert statuses[-1].status_code == 429
    assert int(statuses[-1].headers["retry-after"]) >= 1
    assert bench.client.get("/v1/tenants").status_code == 200


def test_each_caller_has_requests_of_its_own() -> None:
    """A bucket fills at its rate up to twice that, and one caller's use costs no other's."""
    now = [0.0]
    limits = RateLimits(10, clock=lambda: now[0])
    key = Principal("key_1", Scope.TENANT_READ, "acme")
    assert [limits.wait(ADMIN, "x") for _ in range(20)] == [None] * 20
    assert limits.wait(ADMIN, "x") == pytest.approx(0.1)
    assert limits.wait(key, "x") is None
    now[0] += 0.1
    assert limits.wait(ADMIN, "x") is None
    assert limits.wait(ADMIN, "x") is not None
    for number in range(rates.MOST_BUCKETS + 10):
        limits.wait(None, str(number))
    assert len(limits._buckets) == rates.MOST_BUCKETS
