"""The gateway in front of a fake vLLM server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
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
KEY = {"authorization": "Bearer acme-key", "content-type": "application/json"}


def made_gateway(server: Server, directory: TenantDirectory, share: float = 1.0, **options: Any) -> Gateway:
    """A gateway whose tokenizer counts characters."""
    return Gateway(
        server,
        directory=directory,
        internal_key=INTERNAL,
        feature_share=share,
        tokenize=lambda text: [ord(character) for character in text],
        max_prediction_tokens=8,
        **options,
    )


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
    return made_gateway(server, directory)


@pytest.fixture
def post(gateway: Gateway) -> Callable[..., Response]:
    """Send a chat completion as acme, with more body fields and headers as asked."""

    def send(
        extra: dict[str, Any] | None = None,
        headers: dict[str, str | bytes] | None = None,
        key: str = "acme-key",
    ) -> Response:
        raw = json.dumps(BODY | (extra or {})).encode()
        given = KEY | {"authorization": f"Bearer {key}"} | (headers or {})
        return call(gateway, CHAT, headers=given, chunks=[raw])

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
    assert server.plan == RequestPlan(
        tenant="acme",
        arm=Arm.ADAPTER,
        lookahead=4,
        learn=True,
        features=True,
        group=response.headers["x-adaptive-request-id"],
    )
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


def test_errors_of_the_server_take_the_one_shape(post: Callable[..., Response], server: Server) -> None:
    """VLLM's refusals keep their message and their field, in the shape of every other error."""
    error = {"message": "too long", "type": "BadRequestError", "param": "body.max_tokens", "code": 400}
    server.status, server.chunks = 400, [json.dumps({"error": error}).encode()]
    response = post()
    assert response.status == 400
    assert error_of(response) == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": "invalid_request",
    }


def test_what_fails_inside_stays_inside(post: Callable[..., Response], server: Server) -> None:
    """A 500 names the request, not the fault: it may hold another tenant's text."""
    server.status, server.chunks, server.type = 500, [b"Traceback: secret"], b"text/plain"
    response = post()
    assert response.status == 500
    error = error_of(response)
    assert error["code"] == "internal_error"
    assert response.headers["x-adaptive-request-id"] in error["message"]
    assert "secret" not in error["message"]


def test_a_disconnect_reaches_the_server(post: Callable[..., Response], server: Server) -> None:
    """VLLM aborts the request of a client that has gone, so that it costs nothing more."""
    post()
    assert server.after == ["http.disconnect"]


def test_a_body_in_pieces_is_put_together(gateway: Gateway, server: Server) -> None:
    """The server gets it whole, with the length that is true now."""
    raw = json.dumps(BODY).encode()
    headers = KEY | {"transfer-encoding": "chunked", "x-request-id": "theirs"}
    response = call(gateway, CHAT, headers=headers, chunks=[raw[:5], raw[5:9], b"", raw[9:]])
    assert response.status == 200
    assert server.body["messages"] == BODY["messages"]
    assert "transfer-encoding" not in server.headers
    assert server.headers["x-request-id"] != "theirs"


def test_a_client_that_leaves_while_sending_reaches_nobody(gateway: Gateway, server: Server) -> None:
    """Half a body is not served."""
    response = call(gateway, CHAT, headers=KEY, chunks=[b'{"model"'], disconnect=True)
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
        ("GET", "/version"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/messages"),
        ("POST", "/inference/v1/generate"),
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
    headers = KEY
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
    response = call(gateway, CHAT, headers=KEY, chunks=[raw])
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
    """A tenant shares blocks with itself only, off or not, a forced arm with nothing."""

    def salt(**arguments: Any) -> str:
        post(**arguments)
        value: str = server.body["cache_salt"]
        return value

    forced = {"x-adaptive-arm": "turbo", "x-adaptive-internal-key": INTERNAL}
    acme, other = salt(), salt(key="other-key")
    salts = [acme, other, salt(headers=forced), salt(headers=forced)]
    assert len(set(salts)) == 4
    assert salt() == acme
    # Blocks with a gap in the drafter's keys never enter the cache, so these may share.
    assert salt(extra={"speculation": {"enabled": False}}) == acme
    assert salt(extra={"speculation": {"enabled": False}}, key="other-key") == other


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
        gateway = made_gateway(server, directory, share)
        gateway._chance.seed(5)
        count = 0
        for _ in range(100):
            call(gateway, CHAT, headers=KEY, chunks=[raw])
            count += server.plan.features
        return count

    assert sampled(0.0) == 0
    assert 30 < sampled(0.5) < 70


@pytest.mark.parametrize("arm", [Arm.OFF, Arm.TURBO, Arm.ADAPTER])
def test_a_forced_arm_is_a_measurement(
    post: Callable[..., Response], server: Server, arm: Arm, directory: TenantDirectory
) -> None:
    """With the internal key the arm is as asked, whatever the policy's shares; nothing is learnt from it."""
    directory.set_policy("acme", policy(control=0.5, off=0.5), 3)
    response = post(headers={"x-adaptive-arm": arm.value, "x-adaptive-internal-key": INTERNAL})
    assert server.plan.arm is arm
    assert response.headers["x-adaptive-drafter"] == arm.value
    assert server.plan.learn is False
    assert server.plan.fixed is True


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


def test_headers_that_steer_the_engine_do_not_reach_it(post: Callable[..., Response], server: Server) -> None:
    """VLLM takes a priority, a rank, a session and its own key from headers; tracing goes on."""
    post(
        headers={
            "x-vllm-priority": "-5",
            "x-data-parallel-rank": "1",
            "x-session-id": "other",
            "endpoint-load-metrics-format": "text",
            "traceparent": "00-1-2-01",
        }
    )
    assert set(server.headers) == {"content-type", "traceparent", "content-length", "x-request-id"}


@pytest.mark.parametrize("kind", [None, "text/plain", "multipart/form-data; boundary=x", b"\xff"])
def test_a_body_of_another_type_is_refused(
    gateway: Gateway, server: Server, kind: str | bytes | None
) -> None:
    """415 that names the header."""
    headers: dict[str, str | bytes] = {"authorization": "Bearer acme-key"}
    if kind is not None:
        headers["content-type"] = kind
    response = call(gateway, CHAT, headers=headers, chunks=[json.dumps(BODY).encode()])
    assert response.status == 415
    assert error_of(response)["param"] == "content-type"
    assert server.scopes == []


@pytest.mark.parametrize("extra", [{"min_p": 0.1}, {"logit_bias": {"5": 1}}])
def test_sampling_that_drafts_cannot_have_runs_without(
    post: Callable[..., Response], server: Server, extra: dict[str, Any]
) -> None:
    """The request is an off request, and its blocks stay among those."""
    post({"speculation": {"enabled": False}})
    salt = server.body["cache_salt"]
    response = post(extra)
    assert response.headers["x-adaptive-drafter"] == "off"
    assert server.plan.arm is Arm.OFF
    assert server.body["cache_salt"] == salt
    assert extra.items() <= server.body.items()


def test_a_prediction_becomes_draft_tokens(post: Callable[..., Response], server: Server) -> None:
    """In the target's tokens, no longer than the context; vLLM never sees the field."""
    post({"prediction": {"type": "content", "content": [{"type": "text", "text": "ab"}] * 2}})
    assert server.plan.prediction == [97, 98, 97, 98]
    assert "prediction" not in server.body
    post({"prediction": {"type": "content", "content": "abcdefghijklmnop"}})
    assert len(server.plan.prediction) == 8
    post({"prediction": {"type": "content", "content": "ab"}, "speculation": {"enabled": False}})
    assert server.plan.prediction == []


def test_responses_are_not_kept(gateway: Gateway, server: Server) -> None:
    """The responses API is served without a memory that tenants could share."""
    body = {"model": "m", "input": "hi", "store": False}
    response = call(gateway, "/v1/responses", headers=KEY, chunks=[json.dumps(body).encode()])
    assert response.status == 200
    assert server.body["store"] is False
    assert server.plan.tenant == "acme"
    for field, value in {"store": True, "background": True, "previous_response_id": "resp_1"}.items():
        raw = json.dumps(body | {field: value}).encode()
        refused = call(gateway, "/v1/responses", headers=KEY, chunks=[raw])
        assert (refused.status, error_of(refused)["param"]) == (400, field)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_text_routes_need_a_key_and_no_plan(gateway: Gateway, server: Server, path: str) -> None:
    """They carry nothing for the engine."""
    body = json.dumps({"model": "m", "prompt": "hi", "tokens": [1], "vllm_xargs": {}}).encode()
    assert call(gateway, path, headers={"content-type": "application/json"}, chunks=[body]).status == 401
    response = call(gateway, path, headers=KEY, chunks=[body])
    assert response.status == 200
    assert "x-adaptive-drafter" not in response.headers
    assert set(server.body) < {"model", "prompt", "tokens"}


def test_quotas_are_per_tenant(
    post: Callable[..., Response], directory: TenantDirectory, server: Server
) -> None:
    """The one over its quota waits, in the OpenAI error shape; bad requests count, other tenants do not."""
    changed = msgspec.structs.replace(account("acme", revision=2), requests_per_minute=2)
    directory.set_account("acme", changed)
    assert post().status == 200
    assert post({"speculation": 4}).status == 400
    response = post()
    assert response.status == 429
    error = error_of(response)
    assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
    assert 1 <= int(response.headers["retry-after"]) <= 30
    assert post(key="other-key").status == 200
    assert len(server.scopes) == 2


def test_tokens_are_counted_when_a_request_ends(
    post: Callable[..., Response], directory: TenantDirectory, server: Server
) -> None:
    """What the response reports is what is taken from the quota."""
    directory.set_account("acme", msgspec.structs.replace(account("acme", revision=2), tokens_per_minute=50))
    server.type, server.chunks = b"application/json", [b'{"choices": [], "usage": {"total_tokens": 60}}']
    assert post().status == 200
    response = post()
    assert response.status == 429
    assert error_of(response)["type"] == "tokens"
    assert int(response.headers["retry-after"]) in {13, 14}  # 11 tokens at 50 per minute


def test_a_draining_server_takes_no_more(gateway: Gateway, post: Callable[..., Response]) -> None:
    """Clients and load balancers are told to go elsewhere; operators still see the engine."""
    gateway.drain()
    response = post()
    assert (response.status, error_of(response)["code"]) == (503, "draining")
    assert response.headers["retry-after"] == "1"
    assert call(gateway, "/health", method="GET").status == 503
    internal = {"x-adaptive-internal-key": INTERNAL}
    assert call(gateway, "/internal/engine", method="GET", headers=internal).status == 200


def test_every_answer_has_an_id(gateway: Gateway, post: Callable[..., Response]) -> None:
    """Refusals too: it is what the logs go by."""
    ids = [
        call(gateway, "/nowhere", method="GET").headers["x-adaptive-request-id"],
        call(gateway, CHAT).headers["x-adaptive-request-id"],
        post().headers["x-adaptive-request-id"],
    ]
    assert len(set(ids)) == 3
