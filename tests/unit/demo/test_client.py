"""What the demo sends, and what it makes of the answers."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from adaptive.contracts import Arm
from adaptive.demo.client import AdminClient, EndpointClient, RequestFailedError
from adaptive.workloads.prompt import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANSWER = {
    "usage": {"completion_tokens": 21},
    "metrics": {
        "speculative_decoding": {
            "num_spec_steps": 8,
            "num_accepted_draft_tokens": 13,
            "acceptance_histogram": [2, 1, 3, 2, 0],
        }
    },
}
HEADERS = {"x-adaptive-drafter": "adapter", "x-adaptive-drafter-version": "7"}
MESSAGES = [Message(role="user", content="hello")]


class Wire:
    """Keeps the requests and answers them."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.answer: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(
            200, json=ANSWER, headers=HEADERS
        )

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.requests.append(request)
        return self.answer(request)

    def body(self) -> Any:
        """The last request's body."""
        return json.loads(self.requests[-1].content)


@pytest.fixture
def wire() -> Wire:
    """A wire that answers a chat completion."""
    return Wire()


def rewired(client: Any, wire: Wire) -> Any:
    """Let a client's requests go to the wire."""
    old = client._http
    client._http = httpx.Client(
        base_url=old.base_url, headers=old.headers, transport=httpx.MockTransport(wire)
    )
    old.close()
    return client


@pytest.fixture
def endpoint(wire: Wire) -> Iterator[EndpointClient]:
    """A tenant's client."""
    client = rewired(EndpointClient("http://endpoint:8000", "tenant-key", "tiny", "internal"), wire)
    yield client
    client.close()


@pytest.fixture
def admin(wire: Wire) -> Iterator[AdminClient]:
    """An operator's client."""
    client = rewired(AdminClient("http://control:8100", "admin-key"), wire)
    yield client
    client.close()


def test_an_answer_is_read_with_its_acceptance(endpoint: EndpointClient, wire: Wire) -> None:
    """Tokens, drafter, version and the histogram of accepted drafts."""
    done = endpoint.complete(MESSAGES, max_tokens=32, temperature=0.7, seed=5)
    assert (done.output_tokens, done.drafter, done.version) == (21, "adapter", 7)
    assert (done.verify_steps, done.accepted, done.histogram) == (8, 13, (2, 1, 3, 2, 0))
    assert done.seconds > 0
    request = wire.requests[0]
    assert request.url == "http://endpoint:8000/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer tenant-key"
    assert "x-adaptive-arm" not in request.headers
    assert "x-adaptive-internal-key" not in request.headers
    assert wire.body() == {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 32,
        "temperature": 0.7,
        "seed": 5,
    }


@pytest.mark.parametrize("metrics", [None, {}, {"speculative_decoding": None}])
def test_an_answer_without_acceptance_details_is_one(
    endpoint: EndpointClient, wire: Wire, metrics: object
) -> None:
    """The off arm, and endpoints that keep details to themselves."""
    wire.answer = lambda _: httpx.Response(200, json=ANSWER | {"metrics": metrics}, headers=HEADERS)
    done = endpoint.complete(MESSAGES, max_tokens=32, temperature=0.0)
    assert (done.verify_steps, done.accepted, done.histogram) == (0, 0, ())
    assert "seed" not in wire.body()


@pytest.mark.parametrize("arm", Arm)
def test_a_forced_arm_carries_the_internal_key(endpoint: EndpointClient, wire: Wire, arm: Arm) -> None:
    """As the gateway wants it."""
    endpoint.complete(MESSAGES, max_tokens=32, temperature=0.0, arm=arm)
    assert wire.requests[0].headers["x-adaptive-arm"] == arm.value
    assert wire.requests[0].headers["x-adaptive-internal-key"] == "internal"


@pytest.mark.parametrize(
    ("response", "named"),
    [
        (httpx.Response(503, text="overloaded"), "HTTP 503: overloaded"),
        (httpx.Response(200, text="<html>"), r"not an answer.*<html>"),
        (httpx.Response(200, json=[], headers=HEADERS), "not an answer"),
        (httpx.Response(200, json={}, headers=HEADERS), "not an answer of the endpoint .KeyError: 'usage'"),
        (httpx.Response(200, json={"usage": None}, headers=HEADERS), "not an answer"),
        (httpx.Response(200, json=ANSWER), "x-adaptive-drafter"),
    ],
)
def test_anything_else_is_a_failed_request(
    endpoint: EndpointClient, wire: Wire, response: httpx.Response, named: str
) -> None:
    """The demo counts it; the message holds the beginning of what came."""
    wire.answer = lambda _: response
    with pytest.raises(RequestFailedError, match=named):
        endpoint.complete(MESSAGES, max_tokens=32, temperature=0.0)


def test_a_broken_connection_is_a_failed_request(endpoint: EndpointClient, wire: Wire) -> None:
    """The kind of the error is kept."""

    def cut(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("connection reset", request=request)

    wire.answer = cut
    with pytest.raises(RequestFailedError, match="ReadError: connection reset"):
        endpoint.complete(MESSAGES, max_tokens=32, temperature=0.0)


@pytest.mark.parametrize(("status", "known"), [(200, True), (401, False), (403, False)])
def test_a_key_is_tried_on_the_list_of_models(
    endpoint: EndpointClient, wire: Wire, status: int, known: bool
) -> None:
    """The cheapest route that needs one."""
    wire.answer = lambda _: httpx.Response(status)
    assert endpoint.authorized() is known
    assert wire.requests[0].url.path == "/v1/models"


def test_the_engine_is_asked_with_the_internal_key(endpoint: EndpointClient, wire: Wire) -> None:
    """Its report comes as it is."""
    wire.answer = lambda _: httpx.Response(200, json={"pauses_ms": [1.5]})
    assert endpoint.engine() == {"pauses_ms": [1.5]}
    assert wire.requests[0].url.path == "/internal/engine"
    assert wire.requests[0].headers["x-adaptive-internal-key"] == "internal"


@pytest.mark.parametrize("created", [201, 409])
def test_a_tenant_gets_a_key_even_where_it_exists(admin: AdminClient, wire: Wire, created: int) -> None:
    """A demo that is run again goes on with its tenants."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/keys"):
            return httpx.Response(201, json={"id": "k", "key": "secret"})
        return httpx.Response(created)

    wire.answer = answer
    assert admin.create_tenant("tools") == "secret"
    assert [request.url.path for request in wire.requests] == ["/v1/tenants", "/v1/tenants/tools/keys"]
    assert json.loads(wire.requests[0].content) == {"id": "tools", "learn": True}
    assert wire.requests[0].headers["authorization"] == "Bearer admin-key"


def test_a_refused_tenant_is_an_error(admin: AdminClient, wire: Wire) -> None:
    """Anything but 'there already' ends the demo."""
    wire.answer = lambda _: httpx.Response(401)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        admin.create_tenant("tools")


def test_a_pin_is_a_patch(admin: AdminClient, wire: Wire) -> None:
    """Turbo is version 0, which must not be mistaken for no pin."""
    wire.answer = lambda _: httpx.Response(200, json={})
    admin.pin("tools", 0)
    assert (wire.requests[0].method, wire.requests[0].url.path) == ("PATCH", "/v1/tenants/tools")
    assert wire.body() == {"pin": 0}
    wire.answer = lambda _: httpx.Response(422)
    with pytest.raises(httpx.HTTPStatusError, match="422"):
        admin.pin("tools", 9)


class Handler(BaseHTTPRequestHandler):
    """Answers every GET with an empty object."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@contextmanager
def loopback() -> Iterator[str]:
    """A server on this machine; its URL."""
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_clients_ignore_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the demo started is on this machine, where no proxy of the environment reaches."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with loopback() as url:
        endpoint = EndpointClient(url, "tenant-key", "tiny", "internal")
        assert endpoint.authorized()
        endpoint.close()
        admin = AdminClient(url, "admin-key")
        assert admin.tenant("tools") == {}
        admin.close()


def test_versions_come_oldest_first(admin: AdminClient, wire: Wire) -> None:
    """Whatever order the controller lists them in."""
    wire.answer = lambda _: httpx.Response(200, json={"data": [{"version": 2}, {"version": 1}]})
    assert admin.versions("tools") == [{"version": 1}, {"version": 2}]
    wire.answer = lambda _: httpx.Response(200, json={"id": "tools"})
    assert admin.tenant("tools") == {"id": "tools"}
    assert [request.url.path for request in wire.requests] == [
        "/v1/tenants/tools/versions",
        "/v1/tenants/tools",
    ]
