"""ASGI middleware in front of vLLM's OpenAI server: bearer key to tenant, control fields set by us alone.

Routes are deny by default (see `routes`), and so are the fields of a body (see `fields`) and its headers (see
`headers`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from adaptive.contracts import Arm, TenantChanged
from adaptive.endpoint import body as request_body
from adaptive.endpoint import headers as request_headers
from adaptive.endpoint import routes
from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.exchange import CURRENT, Exchange
from adaptive.endpoint.fields import TABLES
from adaptive.endpoint.limits import Limiter
from adaptive.endpoint.prediction import take_prediction
from adaptive.endpoint.response import ResponseRewriter
from adaptive.engine.request import RequestPlan

if TYPE_CHECKING:
    from adaptive.endpoint.prediction import Tokenizer
    from adaptive.endpoint.tenants import Admission, TenantDirectory

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES: Final = 8 << 20


class Gateway:
    """Authenticates, admits and rewrites every request before vLLM sees it, and completes its response.

    Args:
        app: vLLM's application.
        directory: accounts and policies.
        internal_key: opens internal routes and forces arms.
        feature_share: share of recorded requests whose features are kept.
        tokenize: the target's tokenizer, for predictions.
        max_prediction_tokens: longest prediction that can be of use.
        acceptance_details: show accepted counts to clients.
        always_undrafted: the target's own sampling defaults cannot be applied to drafts.
    """

    def __init__(
        self,
        app: Any,
        *,
        directory: TenantDirectory,
        internal_key: str,
        feature_share: float,
        tokenize: Tokenizer,
        max_prediction_tokens: int,
        acceptance_details: bool = False,
        always_undrafted: bool = False,
    ) -> None:
        self._app = app
        self._directory = directory
        self._internal_key = internal_key.encode()
        self._feature_share = feature_share
        self._tokenize = tokenize
        self._max_prediction_tokens = max_prediction_tokens
        self._details = acceptance_details
        self._always_undrafted = always_undrafted
        self._draining = False
        self._chance = random.Random()  # noqa: S311  sampling, not secrecy
        self._log = structlog.get_logger("endpoint")
        self.limiter = Limiter()

    def drain(self) -> None:
        """Refuse what comes from now on; requests in flight go on."""
        self._draining = True

    def serving(self) -> int:
        """Requests of tenants whose responses are not finished."""
        return sum(self.limiter.in_flight().values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request_id = uuid.uuid4().hex
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._dispatch(scope, receive, send, request_id)
            except EndpointError as error:
                self._log.info("request refused", status=error.status, code=error.code, path=scope["path"])
                await error.send(send, request_id)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        route = (scope["method"], scope["path"])
        headers = dict(scope["headers"])
        if route in routes.INTERNAL:
            if not request_headers.is_internal(headers, self._internal_key):
                raise EndpointError(401, "this route needs the internal key", code="internal_only")
            await self._app(scope, receive, send)
            return
        if route not in routes.TENANT and route not in routes.OPEN:
            raise EndpointError(404, f"no route {route[0]} {route[1][:200]}", code="unknown_route")
        if self._draining:
            raise EndpointError(
                503, "this server is shutting down: try another, or again", code="draining", retry_after=1
            )
        if route in routes.OPEN:
            await self._app(scope, receive, send)
            return
        account = self._directory.authenticate(headers.get(b"authorization", b"").decode("latin-1"))
        with structlog.contextvars.bound_contextvars(tenant=account.tenant):
            if route in routes.LISTING:
                inner = {**scope, "query_string": b"", "headers": _without_body(scope, request_id)}
                await self._app(inner, receive, send)
                return
            exchange = Exchange(request_id, account.tenant)
            self.limiter.admit(account)
            try:
                await self._answer(route, account, exchange, scope, receive, send)
            finally:
                self.limiter.settle(account.tenant, exchange.tokens)

    async def _answer(
        self,
        route: routes.Route,
        account: TenantChanged,
        exchange: Exchange,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        started = time.perf_counter()
        headers = dict(scope["headers"])
        request_headers.require_json(headers)
        body = request_body.parse(await _read(headers, receive))
        extra = [(b"x-adaptive-request-id", exchange.request_id.encode())]
        facts: dict[str, Any] = {}
        if route in routes.GENERATING:
            body, admission = await self._plan(route, account, exchange, headers, body)
            extra += [
                (b"x-adaptive-drafter", admission.arm.encode()),
                (b"x-adaptive-drafter-version", str(admission.version).encode()),
            ]
            facts = {"arm": admission.arm, "version": admission.version}
        else:
            body = request_body.prepare(body, TABLES[route[1]])
        rewriter = ResponseRewriter(send, exchange, extra, path=route[1], details=self._details)
        await self._forward(scope, body, exchange, receive, rewriter)
        self._log.info(
            "request served",
            status=rewriter.status,
            tokens=exchange.tokens,
            seconds=round(time.perf_counter() - started, 3),
            **facts,
        )

    async def _plan(
        self,
        route: routes.Route,
        account: TenantChanged,
        exchange: Exchange,
        headers: dict[bytes, bytes],
        body: dict[str, Any],
    ) -> tuple[dict[str, Any], Admission]:
        """The body that vLLM gets, with the request's plan for the engine in it, and who was to draft."""
        forced = request_headers.forced_arm(headers, self._internal_key)
        learn = request_headers.learn_wish(headers)
        lookahead = request_body.take_speculation(body)
        predicted = take_prediction(body) if route[1] == "/v1/chat/completions" else None
        if route[1] == "/v1/responses":
            request_body.refuse_hosted_tools(body)
        undrafted = self._always_undrafted or request_body.undrafted(body)
        kept = request_body.prepare(body, TABLES[route[1]])
        if route[1] == "/v1/responses":
            kept["store"] = False
        admission = self._directory.admit(account.tenant, Arm.OFF if undrafted else forced, lookahead)
        prediction: list[int] = []
        if predicted is not None:
            exchange.predicted = True
            if admission.arm is not Arm.OFF and predicted:
                ids = await asyncio.to_thread(self._tokenize, predicted)
                prediction = ids[: self._max_prediction_tokens]
        plan = RequestPlan(
            tenant=account.tenant,
            arm=admission.wanted,
            lookahead=admission.lookahead,
            # A forced arm is a measurement: it never becomes training data.
            learn=account.learn and learn and forced is None,
            share=account.share,
            features=self._chance.random() < self._feature_share,
            fixed=forced is not None,
            generation=account.generation,
            prediction=prediction,
            group=exchange.request_id,
            canary=admission.canary,
        )
        kept["vllm_xargs"] = plan.to_extra_args()
        kept["cache_salt"] = _cache_salt(plan, exchange.request_id, forced)
        return kept, admission

    async def _forward(
        self, scope: Scope, body: dict[str, Any], exchange: Exchange, receive: Receive, send: Send
    ) -> None:
        raw = json.dumps(body, ensure_ascii=False).encode()
        inner = {
            **scope,
            "query_string": b"",
            "headers": request_headers.forwarded(scope["headers"], raw, exchange.request_id),
        }
        sent = False

        async def receive_body() -> Message:
            nonlocal sent
            if sent:
                return await receive()  # a disconnect, so that vLLM aborts the request
            sent = True
            return {"type": "http.request", "body": raw, "more_body": False}

        token = CURRENT.set(exchange)
        try:
            await self._app(inner, receive_body, send)
        finally:
            CURRENT.reset(token)


def _without_body(scope: Scope, request_id: str) -> list[tuple[bytes, bytes]]:
    return request_headers.forwarded(scope["headers"], b"", request_id)


def _cache_salt(plan: RequestPlan, request_id: str, forced: Arm | None) -> str:
    """Whose prefix-cache blocks a request may share.

    Per tenant always; a forced arm is a measurement and shares nothing.
    """
    scope = request_id if forced is not None else ""
    # A tenant created again after an erasure finds nothing of its namesake's.
    return hashlib.sha256(f"{plan.tenant}\0{plan.generation}\0{scope}".encode()).hexdigest()


async def _read(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise EndpointError(400, "the client closed the connection", code="client_closed")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def _too_large() -> EndpointError:
    return EndpointError(413, f"the body exceeds {MAX_BODY_BYTES} bytes: send less", code="body_too_large")
