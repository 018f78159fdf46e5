"""Calls an ASGI application as a server would."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence


@dataclasses.dataclass
class Response:
    """What came back."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]

    @property
    def body(self) -> bytes:
        """All chunks."""
        return b"".join(self.chunks)

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


def call(
    app: Any,
    path: str,
    *,
    method: str = "POST",
    headers: Mapping[str, str | bytes] | None = None,
    chunks: Sequence[bytes] = (b"",),
    disconnect: bool = False,
) -> Response:
    """Send one request, its body in `chunks`.

    Args:
        app: the application.
        path: request path.
        method: HTTP method.
        headers: request headers.
        chunks: the body as it arrives.
        disconnect: close the connection in place of the last chunk's successor.
    """
    incoming: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": disconnect or number < len(chunks) - 1}
        for number, chunk in enumerate(chunks)
    ]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [
            (name.lower().encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in (headers or {}).items()
        ],
    }
    asyncio.run(app(scope, receive, send))
    start = sent[0]
    assert start["type"] == "http.response.start"
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * (len(sent) - 1)
    return Response(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        [message["body"] for message in sent[1:]],
    )
