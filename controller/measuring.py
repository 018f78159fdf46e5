"""Names, counts and times requests by route, also those that were turned away."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import structlog

from controller.metrics import UNMATCHED_ROUTE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from controller.metrics import Metrics


class MeasuringMiddleware:
    """ASGI middleware around everything else; labels are route templates, never paths."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 500

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            structlog.contextvars.unbind_contextvars("request_id")
            route = getattr(scope.get("route"), "path", UNMATCHED_ROUTE)
            method = scope["method"] if route != UNMATCHED_ROUTE else "any"
            self._metrics.requests.labels(route, method, status).inc()
            self._metrics.request_seconds.labels(route).observe(time.perf_counter() - started)
