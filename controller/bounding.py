"""No body is longer than its route takes, whatever its headers say."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from controller.problems import problem_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON_BYTES: Final = 64 << 10
IMPORT_BYTES: Final = 256 << 20
"""Of an adapter file: rank 256 on a head of hidden size 8192 needs less."""
ADAPTER_TYPE: Final = "application/octet-stream"


class BodyLimitMiddleware:
    """ASGI middleware that ends a request with 413 as soon as its body is too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        imports = scope["method"] == "POST" and scope["path"].endswith("/versions")
        most = IMPORT_BYTES if imports and headers.get("content-type") == ADAPTER_TYPE else JSON_BYTES
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > most:
            await _refuse(most)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                # As an HTTPException it passes through the framework's reading of the body.
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _detail(most))
            return message

        await self._app(scope, counted, send)


def _refuse(most: int) -> ASGIApp:
    return problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", _detail(most))


def _detail(most: int) -> str:
    return f"the body is longer than {most} bytes: send less, or an adapter file as {ADAPTER_TYPE}"
