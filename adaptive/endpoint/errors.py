"""Errors in the OpenAI shape, for everything refused before vLLM's own server sees it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
}


class EndpointError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: What is wrong and what to do.
        parameter: The field at fault, where there is one.
        code: A stable machine-readable code.
    """

    def __init__(self, status: int, message: str, *, parameter: str | None = None, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.parameter = parameter
        self.code = code

    def body(self) -> bytes:
        """The OpenAI error object."""
        return json.dumps(
            {
                "error": {
                    "message": self.message,
                    "type": _TYPES.get(self.status, "invalid_request_error"),
                    "param": self.parameter,
                    "code": self.code,
                }
            }
        ).encode()

    async def send(self, send: Any) -> None:
        """Answer over ASGI."""
        body = self.body()
        start: MutableMapping[str, Any] = {
            "type": "http.response.start",
            "status": self.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
        }
        if self.status == 401:
            start["headers"].append((b"www-authenticate", b"Bearer"))
        await send(start)
        await send({"type": "http.response.body", "body": body})
