"""ASGI middleware in front of vLLM's OpenAI server: bearer key to tenant, control fields set by us alone.

Routes are deny by default; what is not listed here does not exist for clients.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from adaptive.contracts import Arm, TenantChanged
from adaptive.endpoint import body as request_body
from adaptive.endpoint.errors import EndpointError
from adaptive.engine.request import RequestPlan

if TYPE_CHECKING:
    from adaptive.endpoint.tenants import Admission, TenantDirectory

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

GENERATING: Final = frozenset({("POST", "/v1/chat/completions"), ("POST", "/v1/completions")})
TENANT_ROUTES: Final = GENERATING | {("GET", "/v1/models")}
OPEN_ROUTES: Final = frozenset({("GET", "/health")})
INTERNAL_ROUTES: Final = frozenset({("GET", "/metrics"), ("GET", "/internal/engine")})
MAX_BODY_BYTES: Final = 8 << 20

ARM_HEADER: Final = b"x-adaptive-arm"
INTERNAL_KEY_HEADER: Final = b"x-adaptive-internal-key"
LEARN_HEADER: Final = b"x-adaptive-learn"
"""`off`: nothing of this request is recorded, whatever the account says. `on` cannot give what it has not."""


class Gateway:
    """Authenticates, admits and rewrites every request before vLLM sees it."""

    def __init__(self, app: Any, directory: TenantDirectory, internal_key: str, feature_share: float) -> None:
        self._app = app
        self._directory = directory
        self._internal_key = internal_key.encode()
        self._feature_share = feature_share
        self._chance = random.Random()  # noqa: S311  sampling, not secrecy
        self._log = structlog.get_logger("endpoint")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            await self._dispatch(scope, receive, send)
        except EndpointError as error:
            self._log.info("request refused", status=error.status, code=error.code, path=scope["path"])
            await error.send(send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        headers = dict(scope["headers"])
        if route in OPEN_ROUTES:
            await self._app(scope, receive, send)
        elif route in INTERNAL_ROUTES:
            if not self._is_internal(headers):
                raise EndpointError(401, "this route needs the internal key", code="internal_only")
            await self._app(scope, receive, send)
        elif route in TENANT_ROUTES:
            account = self._directory.authenticate(headers.get(b"authorization", b"").decode("latin-1"))
            if route in GENERATING:
                await self._generate(account, scope, headers, receive, send)
            else:
                await self._app(scope, receive, send)
        else:
            raise EndpointError(404, f"no route {route[0]} {route[1]}", code="unknown_route")

    def _is_internal(self, headers: dict[bytes, bytes]) -> bool:
        # As bytes: comparing strings raises where a header is not ASCII.
        return hmac.compare_digest(headers.get(INTERNAL_KEY_HEADER, b""), self._internal_key)

    def _forced_arm(self, headers: dict[bytes, bytes]) -> Arm | None:
        value = headers.get(ARM_HEADER)
        if value is None or not self._is_internal(headers):
            return None
        try:
            return Arm(value.decode("latin-1"))
        except ValueError:
            raise EndpointError(
                400,
                f"{ARM_HEADER.decode()} must be one of {', '.join(Arm)}",
                parameter=ARM_HEADER.decode(),
                code="invalid_arm",
            ) from None

    async def _generate(
        self, account: TenantChanged, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        started = time.perf_counter()
        request_id = uuid.uuid4().hex
        forced = self._forced_arm(headers)
        wanted = _learn_wish(headers)
        body = request_body.parse(await _read(receive))
        lookahead = request_body.take_speculation(body)
        admission = self._directory.admit(account.tenant, forced, lookahead)
        plan = RequestPlan(
            tenant=account.tenant,
            arm=admission.arm,
            lookahead=admission.lookahead,
            # A forced arm is a measurement: it never becomes training data.
            learn=account.learn and wanted and forced is None,
            share=account.share,
            features=self._chance.random() < self._feature_share,
            generation=account.generation,
        )
        new_body = request_body.inject(body, plan.to_extra_args(), _cache_salt(plan, request_id, forced))
        with structlog.contextvars.bound_contextvars(tenant=account.tenant, request_id=request_id):
            status = await self._forward(scope, new_body, request_id, admission, receive, send)
            self._log.info(
                "request served",
                status=status,
                arm=admission.arm,
                version=admission.version,
                seconds=round(time.perf_counter() - started, 3),
            )

    async def _forward(
        self, scope: Scope, body: bytes, request_id: str, admission: Admission, receive: Receive, send: Send
    ) -> int:
        replaced = (b"content-length", b"x-request-id", b"transfer-encoding", LEARN_HEADER)
        kept = [(name, value) for name, value in scope["headers"] if name not in replaced]
        inner = {
            **scope,
            "headers": [
                *kept,
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", request_id.encode()),
            ],
        }
        extra = [
            (b"x-adaptive-request-id", request_id.encode()),
            (b"x-adaptive-drafter", admission.arm.encode()),
            (b"x-adaptive-drafter-version", str(admission.version).encode()),
        ]
        sent = False
        status = 0

        async def receive_body() -> MutableMapping[str, Any]:
            nonlocal sent
            if sent:
                return await receive()  # a disconnect, so that vLLM aborts the request
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self._app(inner, receive_body, send_with_headers)
        return status


def _cache_salt(plan: RequestPlan, request_id: str, forced: Arm | None) -> str:
    """Whose prefix-cache blocks a request may share.

    Per tenant always. Requests without speculation leave gaps in the drafter's KV cache, so their blocks stay
    among themselves; a forced arm is a measurement and shares nothing.
    """
    scope = request_id if forced is not None else ("off" if plan.arm is Arm.OFF else "")
    # A tenant created again after an erasure finds nothing of its namesake's.
    return hashlib.sha256(f"{plan.tenant}\0{plan.generation}\0{scope}".encode()).hexdigest()


def _learn_wish(headers: dict[bytes, bytes]) -> bool:
    """Whether the client lets this request be recorded.

    Raises:
        EndpointError: 400 for anything but on or off: a wish for privacy is never guessed.
    """
    value = headers.get(LEARN_HEADER, b"on").decode("latin-1").strip().lower()
    if value not in {"on", "off"}:
        name = LEARN_HEADER.decode()
        raise EndpointError(400, f"{name} must be on or off", parameter=name, code="invalid_header")
    return value == "on"


async def _read(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise EndpointError(400, "the client closed the connection", code="client_closed")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise EndpointError(
                413, f"the body exceeds {MAX_BODY_BYTES} bytes: send less", code="body_too_large"
            )
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)
