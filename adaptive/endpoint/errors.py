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
    415: "invalid_request_error",
    503: "service_unavailable_error",
}


class EndpointError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: What is wrong and what to do.
        parameter: The field at fault, where there is one.
        code: A stable machine-readable code.
        kind: The error's `type`; by status if not given.
        retry_after: Seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        parameter: str | None = None,
        code: str,
        kind: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.parameter = parameter
        self.code = code
        self.kind = kind or _TYPES.get(status, "invalid_request_error")
        self.retry_after = retry_after

    def body(self) -> bytes:
        """The OpenAI error object."""
        return json.dumps(
            {
                "error": {
                    "message": self.message,
                    "type": self.kind,
                    "param": self.parameter,
                    "code": self.code,
                }
            }
        ).encode()

    async def send(self, send: Any, request_id: str) -> None:
        """Answer over ASGI."""
        body = self.body()
        start: MutableMapping[str, Any] = {
            "type": "http.response.start",
            "status": self.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-adaptive-request-id", request_id.encode()),
            ],
        }
        if self.retry_after is not None:
            start["headers"].append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            start["headers"].append((b"www-authenticate", b"Bearer"))
        await send(start)
        await send({"type": "http.response.body", "body": body})
