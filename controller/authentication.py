"""Every path but the health checks needs the admin key, also paths that do not exist."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers

from controller.problems import problem_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


class AdminKeyMiddleware:
    """ASGI middleware that lets a request through only with `Authorization: Bearer <admin key>`.

    It stands before routing, so that a route added later is closed without anyone remembering to close it.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode(), self._key)
            if scheme.lower() != "bearer" or not right:
                response = problem_response(
                    HTTPStatus.UNAUTHORIZED,
                    "unauthorized",
                    "missing or wrong admin key: send 'Authorization: Bearer <key>' with the key in "
                    "ADAPTIVE_ADMIN_KEY, or else in the file admin_key of ADAPTIVE_HOME",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
