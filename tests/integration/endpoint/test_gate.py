"""Who gets in, what is refused, what is counted and what is logged, at a real endpoint."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive.contracts import TenantState
from adaptive.endpoint.fields import TABLES
from adaptive.endpoint.routes import GENERATING, INTERNAL, LISTING, OPEN, TENANT
from adaptive.internal_key import internal_key
from tests.integration.endpoint.server import MODEL
from tests.waiting import eventually

if TYPE_CHECKING:
    import httpx

    from tests.integration.endpoint.server import Server

CHAT: Final = "/v1/chat/completions"
CANARY: Final = "heliotrope-8823-marmalade"
HI: Final[Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The OpenAI error object, its shape checked."""
    assert list(response.json()) == ["error"], response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-adaptive-request-id"]
    return error


def test_every_route_of_vllms_server_is_closed_unless_listed(server: Server) -> None:
    """Whatever vLLM registers: without a key 401 or 404, with a foreign one too, with a tenant's the list."""
    found = re.findall(r"Route: (\S+), Methods: ([A-Z, ]+)", server.logs())
    registered = {(method, path) for path, methods in found for method in methods.split(", ")}
    assert len(registered) > 30
    assert registered > TENANT | OPEN | INTERNAL
    for method, path in sorted(registered):
        opened = "/".join("x" if part.startswith("{") else part for part in path.split("/"))
        for key in (None, "foreign-key", "acme-key"):
            response = server.request(method, opened, key)
            route = (method, path)
            if route in OPEN:
                assert response.status_code == 200
            elif route in INTERNAL or (route in TENANT and key != "acme-key"):
                assert response.status_code == 401, route
            elif route in LISTING:
                assert response.status_code == 200
            elif route in TENANT:
                assert response.status_code == 415, route  # this request has no body
            else:
                assert response.status_code == 404, route


def test_internal_routes_open_with_the_internal_key(server: Server) -> None:
    """Operators see slots, tenants and vLLM's metrics."""
    key = {"x-adaptive-internal-key": internal_key(server.settings)}
    assert "vllm:" in server.get("/metrics", headers=key).text
    state = server.engine()
    assert {"slots", "tenants", "counters"} <= state.keys()
    assert state["tenants"]["acme"]["policy_version"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "parameter"),
    [
        (CHAT, b"{", 400, None),
        (CHAT, b"[]", 400, None),
        (CHAT, b'{"model": "\\ud800"}', 400, None),
        (CHAT, {**HI, "model": "gpt-5"}, 404, "model"),
        (CHAT, {"model": MODEL}, 400, "messages"),
        (CHAT, {**HI, "messages": "Hi"}, 400, "messages"),
        (CHAT, {**HI, "temperature": -1}, 400, "temperature"),
        (CHAT, {**HI, "max_tokens": 5000}, 400, "max_tokens"),
        (CHAT, {**HI, "n": 0}, 400, "n"),
        (CHAT, {**HI, "logit_bias": {"99999999": 1}}, 400, "logit_bias"),
        (CHAT, {**HI, "min_p": 2}, 400, "min_p"),
        (CHAT, {**HI, "speculation": {"max_lookahead": "4"}}, 400, "speculation.max_lookahead"),
        (CHAT, {**HI, "prediction": {"type": "content", "content": 5}}, 400, "prediction.content"),
        (CHAT, {**HI, "use_beam_search": True}, 400, "use_beam_search"),
        (CHAT, {**HI, "chat_template": "{{ 1 }}"}, 400, "chat_template"),
        ("/v1/completions", {"model": MODEL, "prompt": "Hi " * 3000, "max_tokens": 2}, 400, "prompt"),
        ("/v1/responses", {"model": MODEL, "input": "Hi", "previous_response_id": "x"}, 400, None),
        ("/tokenize", {"model": MODEL, "prompt": 5}, 400, None),
    ],
)
def test_bad_input(server: Server, path: str, body: Any, status: int, parameter: str | None) -> None:
    """A clear refusal in the OpenAI shape, naming the field where there is one."""
    response = server.post(path, body)
    error = error_of(response)
    assert response.status_code == status, error
    assert error["message"]
    if parameter is not None:
        assert error["param"] is not None
        assert error["param"].split(".")[0] == parameter.split(".")[0]


def test_a_body_that_is_too_large(server: Server) -> None:
    """It is refused, not read to the end."""
    response = server.post(CHAT, b" " * ((8 << 20) + 1))
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")


def test_foreign_fields_change_nothing(server: Server) -> None:
    """Another tenant's name, cache or priority in the body or in headers: served as one's own."""
    sent = HI | {
        "vllm_xargs": {"adaptive_tenant": "other", "adaptive_arm": "off", "adaptive_learn": 1},
        "cache_salt": "other",
        "priority": -9,
        "kv_transfer_params": {"do_remote_prefill": True},
        "request_id": "mine",
    }
    before = requests_of(server, "other")
    headers = {"x-vllm-priority": "-9", "x-adaptive-arm": "off", "x-request-id": "mine"}
    response = server.post(CHAT, sent, headers=headers)
    assert response.status_code == 200
    assert response.headers["x-adaptive-drafter"] == "turbo"
    assert "mine" not in response.json()["id"]
    assert response.json()["kv_transfer_params"] is None
    assert requests_of(server, "other") == before


def requests_of(server: Server, tenant: str) -> int:
    """Requests the engine has counted for a tenant."""
    return sum(row["requests"] for row in server.engine()["counters"] if row["tenant"] == tenant)


def test_a_suspended_tenant_and_its_return(server: Server) -> None:
    """403 while it is suspended, nothing for the others."""
    server.account("visitor", TenantState.SUSPENDED)
    eventually(lambda: server.get("/v1/models", "visitor-key").status_code == 403)
    with pytest.raises(openai.PermissionDeniedError):
        server.client("visitor").models.list()
    assert server.get("/v1/models", "acme-key").status_code == 200
    server.account("visitor")
    eventually(lambda: server.get("/v1/models", "visitor-key").status_code == 200)


def test_quotas(server: Server) -> None:
    """429 with Retry-After; the official client raises RateLimitError and knows the code."""
    server.account("visitor", requests_per_minute=2, tokens_per_minute=100_000)
    eventually(lambda: quotas(server).get("requests_per_minute") == 2)
    client = server.client("visitor")
    for _ in range(2):
        client.chat.completions.create(**HI)
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(**HI)
    assert raised.value.code == "rate_limit_exceeded"
    assert 1 <= int(raised.value.response.headers["retry-after"]) <= 30
    assert server.post(CHAT, HI).status_code == 200

    server.account("visitor", tokens_per_minute=20)
    eventually(lambda: quotas(server).get("tokens_per_minute") == 20)
    # Known tokens only count at the end of a request: this one is admitted and overdraws.
    answer = client.chat.completions.create(**HI)
    assert answer.usage is not None
    assert answer.usage.total_tokens > 20
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(**HI)
    assert raised.value.type == "tokens"

    server.account("visitor", concurrent_requests=1)
    eventually(lambda: quotas(server).get("concurrent_requests") == 1)
    with client.chat.completions.create(**(HI | {"max_tokens": 400}), stream=True) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**HI)
    # The client went away: the engine stops, and the place is free again.
    eventually(lambda: quotas(server)["requests_in_flight"] == 0)
    eventually(lambda: server.engine()["requests"] == 0)
    assert client.chat.completions.create(**HI).usage is not None


def quotas(server: Server) -> dict[str, Any]:
    """What the endpoint knows of the visitor."""
    found: dict[str, Any] = server.engine()["tenants"].get("visitor", {})
    return found


def test_logs_name_requests_and_no_text(server: Server) -> None:
    """Request and tenant ids in our lines and the id in vLLM's own; no prompt, answer or wish anywhere."""
    body = HI | {
        "messages": [{"role": "user", "content": CANARY}],
        "stop": [CANARY],
        "prediction": {"type": "content", "content": CANARY},
        "bad_words": [CANARY],
        CANARY: 1,
    }
    served = server.post(CHAT, body)
    assert served.status_code == 200
    refused = server.post(CHAT, body | {"temperature": CANARY})
    assert refused.status_code == 400
    request_id = served.headers["x-adaptive-request-id"]
    eventually(lambda: refused.headers["x-adaptive-request-id"] in server.logs())
    logs = server.logs()
    ours = [json.loads(line) for line in logs.splitlines() if line.startswith("{") and request_id in line]
    assert [(line["tenant"], line["event"], line["status"]) for line in ours] == [
        ("acme", "request served", 200)
    ]
    assert re.search(rf"Added request chatcmpl-{request_id}", logs)
    assert CANARY not in logs
    assert "acme-key" not in logs


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
BODIES = st.tuples(
    st.sampled_from(sorted(path for _, path in GENERATING)),
    st.sampled_from(sorted({field for table in TABLES.values() for field in table})).flatmap(
        lambda field: st.fixed_dictionaries({field: VALUES})
    ),
    st.fixed_dictionaries({}, optional={"speculation": VALUES, "prediction": VALUES}),
)


def test_no_body_makes_the_server_fail(server: Server) -> None:
    """Any value in any field: served or refused as the client's fault, never a 500, never for another."""
    base = {
        "/v1/chat/completions": HI,
        "/v1/completions": {"model": MODEL, "prompt": "Hi", "max_tokens": 1},
        "/v1/responses": {"model": MODEL, "input": "Hi", "max_output_tokens": 1},
    }
    statuses: set[int] = set()
    before = requests_of(server, "other")

    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(BODIES)
    def send(drawn: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
        path, field, ours = drawn
        if field.keys() & {"max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"}:
            field = {}  # long answers are another test's
        response = server.post(path, base[path] | field | ours)
        statuses.add(response.status_code)
        assert response.status_code in {200, 400, 404}, (path, field, ours, response.text)
        if response.status_code != 200:
            error_of(response)

    send()
    assert {200, 400} <= statuses
    assert requests_of(server, "other") == before
    assert server.process_alive()
