"""The gateway in front of a fake vLLM server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from adaptive.contracts import Arm, TenantState
from adaptive.endpoint.gateway import MAX_BODY_BYTES, Gateway
from adaptive.endpoint.tenants import TenantDirectory
from adaptive.engine.request import RequestPlan
from tests.unit.endpoint.asgi import Response, call
from tests.unit.endpoint.records import account, policy

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

INTERNAL = "internal-key"
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Server:
    """Stands for vLLM's server: keeps what arrives, answers in chunks."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.bodies: list[Any] = []
        self.after: list[str] = []
        self.status = 200
        self.chunks = [b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"]
        self.type = b"text/event-stream"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        self.scopes.append(scope)
        if scope["type"] == "lifespan":
            return
        message = await receive()
        self.bodies.append(message["body"])
        assert message.get("more_body", False) is False
        self.after.append((await receive())["type"])
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [(b"content-type", self.type)],
            }
        )
        for number, chunk in enumerate(self.chunks):
            await send(
                {
                    "type": "http.response.body",
                    "body": chunk,
                    "more_body": number < len(self.chunks) - 1,
                }
            )

    @property
    def body(self) -> dict[str, Any]:
        """The last body."""
        body: dict[str, Any] = json.loads(self.bodies[-1])
        return body

    @property
    def plan(self) -> RequestPlan:
        """The last request's plan, as the engine reads it."""
        return RequestPlan.from_extra_args(self.body["vllm_xargs"])

    @property
    def headers(self) -> dict[str, str]:
        """The last request's headers."""
        return {name.decode(): value.decode() for name, value in self.scopes[-1]["headers"]}


@pytest.fixture
def server() -> Server:
    """A server that was never called."""
    return Server()


@pytest.fixture
def directory() -> TenantDirectory:
    """Two tenants, one of which has an adapter in force."""
    made = TenantDirectory()
    made.set_account("acme", account("acme"))
    made.set_account("other", account("other"))
    made.set_policy("acme", policy("acme"), 3)
    return made


@pytest.fixture
def gateway(server: Server, directory: TenantDirectory) -> Gateway:
    """The gateway under test; features of every request are kept."""
    return Gateway(server, directory=directory, internal_key=INTERNAL, feature_share=1.0)


@pytest.fixture
def post(gateway: Gateway) -> Callable[..., Response]:
    """Send a chat completion as acme, with more body fields and headers as asked."""

    def send(
        extra: dict[str, Any] | None = None,
        headers: dict[str, str | bytes] | None = None,
        key: str = "acme-key",
    ) -> Response:
        raw = json.dumps(BODY | (extra or {})).encode()
        return call(gateway, CHAT, headers={"Authorization": f"Bearer {key}"} | (headers or {}), chunks=[raw])

    return send


def error_of(response: Response) -> dict[str, Any]:
    """The OpenAI error object, its shape checked."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == str(len(response.body))
    body = response.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return error


def test_a_request_is_rewritten_for_the_engine(post: Callable[..., Response], server: Server) -> None:
    """Tenant, arm and consent travel in vllm_xargs; what the client asked for stays as it was."""
    response = post({"temperature": 0.5})
    assert response.status == 200
    assert server.plan == RequestPlan(tenant="acme", arm=Arm.ADAPTER, lookahead=4, learn=True, features=True)
    assert server.body["messages"] == BODY["messages"]
    assert server.body["temperature"] == 0.5
    assert server.headers["content-length"] == str(len(server.bodies[-1]))
    assert server.headers["x-request-id"] == response.headers["x-adaptive-request-id"]


def test_the_response_says_who_drafts(post: Callable[..., Response], directory: TenantDirectory) -> None:
    """Arm and version at admission, and an id that is new for every request."""
    first, second = post(), post()
    assert (first.headers["x-adaptive-drafter"], first.headers["x-adaptive-drafter-version"]) == (
        "adapter",
        "3",
    )
    assert first.headers["x-adaptive-request-id"] != second.headers["x-adaptive-request-id"]
    assert first.headers["content-type"] == "text/event-stream"
    directory.set_policy("acme", None, 0)
    turbo = post()
    assert (turbo.headers["x-adaptive-drafter"], turbo.headers["x-adaptive-drafter-version"]) == (
        "turbo",
        "0",
    )


def test_streams_pass_chunk_by_chunk(post: Callable[..., Response], server: Server) -> None:
    """Nothing is buffered or merged on the way back."""
    assert post().chunks == server.chunks


def test_errors_of_the_server_pass_through(post: Callable[..., Response], server: Server) -> None:
    """VLLM's own refusals are answered in its own words."""
    server.status, server.chunks = 422, [b'{"error": "max_tokens"}']
    response = post()
    assert (response.status, response.body) == (422, b'{"error": "max_tokens"}')


def test_a_disconnect_reaches_the_server(post: Callable[..., Response], server: Server) -> None:
    """VLLM aborts the request of a client that has gone, so that it costs nothing more."""
    post()
    assert server.after == ["http.disconnect"]


def test_a_body_in_pieces_is_put_together(gateway: Gateway, server: Server) -> None:
    """The server gets it whole, with the length that is true now."""
    raw = json.dumps(BODY).encode()
    headers = {"authorization": "Bearer acme-key", "transfer-encoding": "chunked", "x-request-id": "theirs"}
    response = call(gateway, CHAT, headers=headers, chunks=[raw[:5], raw[5:9], b"", raw[9:]])
    assert response.status == 200
    assert server.body["messages"] == BODY["messages"]
    assert "transfer-encoding" not in server.headers
    assert server.headers["x-request-id"] != "theirs"


def test_a_client_that_leaves_while_sending_reaches_nobody(gateway: Gateway, server: Server) -> None:
    """Half a body is not served."""
    response = call(
        gateway, CHAT, headers={"authorization": "Bearer acme-key"}, chunks=[b'{"model"'], disconnect=True
    )
    assert error_of(response)["code"] == "client_closed"
    assert server.bodies == []


@pytest.mark.parametrize(
    ("key", "status", "kind", "code"),
    [
        (None, 401, "authentication_error", "missing_api_key"),
        ("Bearer wrong", 401, "authentication_error", "invalid_api_key"),
        (b"Bearer \xff\xfe", 401, "authentication_error", "invalid_api_key"),
        ("Bearer closed-key", 403, "permission_error", "tenant_suspended"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", CHAT), ("POST", "/v1/completions"), ("GET", "/v1/models")]
)
def test_strangers_are_refused(
    gateway: Gateway,
    directory: TenantDirectory,
    server: Server,
    key: str | bytes | None,
    status: int,
    kind: str,
    code: str,
    method: str,
    path: str,
) -> None:
    """No key, a wrong one, one of bytes that are no text, a suspended tenant's: refused before the server."""
    directory.set_account("closed", account("closed", state=TenantState.SUSPENDED))
    headers = {"authorization": key} if key is not None else {}
    response = call(gateway, path, method=method, headers=headers, chunks=[b"{}"])
    assert response.status == status
    error = error_of(response)
    assert (error["type"], error["code"]) == (kind, code)
    assert response.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    assert server.scopes == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/docs"),
        ("GET", CHAT),
        ("POST", CHAT + "/"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/embeddings"),
        ("POST", "/collective_rpc"),
        ("POST", "/health"),
        ("POST", "/internal/engine"),
        ("DELETE", "/v1/models"),
    ],
)
def test_what_is_not_listed_does_not_exist(gateway: Gateway, server: Server, method: str, path: str) -> None:
    """Routes of vLLM that nobody decided to open are not there, whatever key is sent."""
    headers = {"authorization": "Bearer acme-key", "x-adaptive-internal-key": INTERNAL}
    response = call(gateway, path, method=method, headers=headers)
    assert response.status == 404
    error = error_of(response)
    assert error["code"] == "unknown_route"
    assert path in error["message"]
    assert server.scopes == []


def test_a_body_that_is_too_large_is_refused_early(gateway: Gateway, server: Server) -> None:
    """It stops reading at the limit; a body of exactly the limit is read."""
    piece = b" " * (1 << 20)
    chunks = [piece] * 100
    headers = {"authorization": "Bearer acme-key"}
    response = call(gateway, CHAT, headers=headers, chunks=chunks)
    assert response.status == 413
    assert error_of(response)["code"] == "body_too_large"
    raw = json.dumps(BODY).encode()
    allowed = call(gateway, CHAT, headers=headers, chunks=[raw + b" " * (MAX_BODY_BYTES - len(raw))])
    assert allowed.status == 200
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("raw", "parameter"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"speculation": {"max_lookahead": "4"}}', "speculation.max_lookahead"),
        (b'{"speculation": 4}', "speculation"),
    ],
)
def test_malformed_bodies_are_bad_requests(
    gateway: Gateway, server: Server, raw: bytes, parameter: str | None
) -> None:
    """400, with the field in `param`."""
    response = call(gateway, CHAT, headers={"authorization": "Bearer acme-key"}, chunks=[raw])
    assert response.status == 400
    error = error_of(response)
    assert (error["type"], error["param"]) == ("invalid_request_error", parameter)
    assert server.scopes == []


def test_a_client_cannot_steer_the_engine(post: Callable[..., Response], server: Server) -> None:
    """Another tenant, an arm, a cache or a priority that a client asks for is overwritten or dropped."""
    post(
        {
            "vllm_xargs": {"adaptive_tenant": "other", "adaptive_arm": "off", "adaptive_learn": 0},
            "cache_salt": "guess",
            "priority": -5,
            "request_id": "mine",
            "kv_transfer_params": {},
        }
    )
    assert server.plan.tenant == "acme"
    assert server.plan.arm is Arm.ADAPTER
    assert server.body["cache_salt"] != "guess"
    assert not {"priority", "request_id", "kv_transfer_params"} & server.body.keys()


def test_speculation_is_the_clients_to_lower(post: Callable[..., Response], server: Server) -> None:
    """Opting out makes the request an off request; a smaller lookahead is passed on."""
    assert post({"speculation": {"enabled": False}}).headers["x-adaptive-drafter"] == "off"
    assert server.plan.arm is Arm.OFF
    assert "speculation" not in server.body
    post({"speculation": {"max_lookahead": 2}})
    assert server.plan.lookahead == 2


def test_prefix_caches_are_apart(post: Callable[..., Response], server: Server) -> None:
    """A tenant shares blocks with itself only, off requests with off requests, a forced arm with nothing."""

    def salt(**arguments: Any) -> str:
        post(**arguments)
        value: str = server.body["cache_salt"]
        return value

    forced = {"x-adaptive-arm": "turbo", "x-adaptive-internal-key": INTERNAL}
    acme, other, off = salt(), salt(key="other-key"), salt(extra={"speculation": {"enabled": False}})
    salts = [acme, other, off, salt(headers=forced), salt(headers=forced)]
    assert len(set(salts)) == 5
    assert salt() == acme
    assert salt(extra={"speculation": {"enabled": False}}) == off
    assert salt(extra={"speculation": {"enabled": False}}, key="other-key") not in salts


def test_consent_travels_with_the_request(
    post: Callable[..., Response], server: Server, directory: TenantDirectory
) -> None:
    """`learn` and `share` are the account's at admission."""
    directory.set_account("acme", account("acme", revision=2, learn=False))
    post()
    assert (server.plan.learn, server.plan.share) == (False, False)
    directory.set_account("acme", account("acme", revision=3, learn=True, share=True))
    post()
    assert (server.plan.learn, server.plan.share) == (True, True)


def test_features_are_kept_for_their_share(server: Server, directory: TenantDirectory) -> None:
    """0 samples none; a half samples about a half."""
    raw = json.dumps(BODY).encode()

    def sampled(share: float) -> int:
        gateway = Gateway(server, directory=directory, internal_key=INTERNAL, feature_share=share)
        gateway._chance.seed(5)
        count = 0
        for _ in range(100):
            call(gateway, CHAT, headers={"authorization": "Bearer acme-key"}, chunks=[raw])
            count += server.plan.features
        return count

    assert sampled(0.0) == 0
    assert 30 < sampled(0.5) < 70


@pytest.mark.parametrize("arm", Arm)
def test_a_forced_arm_is_a_measurement(
    post: Callable[..., Response], server: Server, arm: Arm, directory: TenantDirectory
) -> None:
    """With the internal key the arm is as asked, whatever the policy's shares; nothing is learnt from it."""
    directory.set_policy("acme", policy(control=0.5, off=0.5), 3)
    response = post(headers={"x-adaptive-arm": arm.value, "x-adaptive-internal-key": INTERNAL})
    assert server.plan.arm is arm
    assert response.headers["x-adaptive-drafter"] == arm.value
    assert server.plan.learn is False


@pytest.mark.parametrize("key", [None, "", "wrong", b"\xff\xfe", INTERNAL + "x"])
def test_an_arm_without_the_internal_key_is_ignored(
    post: Callable[..., Response], server: Server, key: str | bytes | None
) -> None:
    """The request is served as any other, learning included."""
    headers: dict[str, str | bytes] = {"x-adaptive-arm": "off"}
    if key is not None:
        headers["x-adaptive-internal-key"] = key
    assert post(headers=headers).status == 200
    assert server.plan.arm is Arm.ADAPTER
    assert server.plan.learn is True


def test_beam_search_never_reaches_the_engine(post: Callable[..., Response], server: Server) -> None:
    """The client gets an error of the API's own form that names the field."""
    response = post({"use_beam_search": True, "n": 2})
    assert response.status == 400
    assert error_of(response)["param"] == "use_beam_search"
    assert server.scopes == []


def test_an_unknown_arm_is_a_bad_request(post: Callable[..., Response]) -> None:
    """The error names the header and the arms there are."""
    response = post(headers={"x-adaptive-arm": "ngram", "x-adaptive-internal-key": INTERNAL})
    assert response.status == 400
    error = error_of(response)
    assert error["param"] == "x-adaptive-arm"
    assert "off, turbo, adapter" in error["message"]


@pytest.mark.parametrize("path", ["/metrics", "/internal/engine"])
@pytest.mark.parametrize("key", [None, "", "wrong", b"\xff"])
def test_internal_routes_need_the_internal_key(
    gateway: Gateway, server: Server, path: str, key: str | bytes | None
) -> None:
    """A tenant's key opens none of them."""
    headers: dict[str, str | bytes] = {"authorization": "Bearer acme-key"}
    if key is not None:
        headers["x-adaptive-internal-key"] = key
    response = call(gateway, path, method="GET", headers=headers)
    assert response.status == 401
    assert error_of(response)["code"] == "internal_only"
    assert server.scopes == []
    opened = call(gateway, path, method="GET", headers={"x-adaptive-internal-key": INTERNAL})
    assert opened.status == 200


def test_health_is_open(gateway: Gateway) -> None:
    """Probes of a load balancer have no key."""
    assert call(gateway, "/health", method="GET").status == 200


def test_models_are_listed_for_tenants(gateway: Gateway, server: Server) -> None:
    """Passed on unchanged."""
    response = call(gateway, "/v1/models", method="GET", headers={"authorization": "Bearer acme-key"})
    assert response.status == 200
    assert "x-adaptive-drafter" not in response.headers
    assert server.bodies == [b""]


def test_websockets_are_closed(gateway: Gateway, server: Server) -> None:
    """VLLM's realtime routes are not for clients."""
    sent: list[Any] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "websocket.connect"}

    asyncio.run(gateway({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert server.scopes == []


def test_lifespan_reaches_the_server(gateway: Gateway, server: Server) -> None:
    """The application starts and stops as it would without us."""

    async def nothing(*_: Any) -> MutableMapping[str, Any]:
        return {}

    asyncio.run(gateway({"type": "lifespan"}, nothing, nothing))  # type: ignore[arg-type]  # never called
    assert [scope["type"] for scope in server.scopes] == ["lifespan"]
