"""What is added to vLLM's responses on their way to the client, and the one shape of its errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.fields import TABLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    from adaptive.endpoint.exchange import Exchange

    Message = MutableMapping[str, Any]

_EVENT_END: Final = b"\n\n"
_DATA: Final = b"data: "
_CODES: Final = {
    400: "invalid_request",
    404: "not_found",
    413: "request_too_large",
    422: "invalid_request",
    429: "rate_limit_exceeded",
    503: "overloaded",
}
_TEXT_FIELDS: Final = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
}
"""What holds the tokens that vLLM calls `input_tokens`."""
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Events of the responses API that carry the whole response."""


class ResponseRewriter:
    """ASGI `send` of one exchange: JSON bodies are completed, streams are passed on event by event."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[None]],
        exchange: Exchange,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        path: str,
        details: bool,
    ) -> None:
        self._send = send
        self._path = path
        self._exchange = exchange
        self._headers = headers
        self._details = details
        self._start: Message = {}
        self._rest = b""
        self._stream = False
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Handle one message from vLLM's server."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), *self._headers]
            self._start = {**message, "headers": headers}
            kind = dict(headers).get(b"content-type", b"")
            self._stream = self.status < 400 and kind.startswith(b"text/event-stream")
            if self._stream:
                await self._send(self._start)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._stream:
            await self._pass_events(message)
        else:
            self._rest += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_whole()

    # -- JSON ----------------------------------------------------------------------------------------------

    async def _send_whole(self) -> None:
        body = self._whole(self._rest)
        headers = [
            (name, value)
            for name, value in self._start["headers"]
            if name not in {b"content-length", b"content-type"}
        ]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def _whole(self, raw: bytes) -> bytes:
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if self.status >= 400:
            return self._error(self.status, answer)
        if not isinstance(answer, dict):
            return raw
        self._complete(answer)
        return json.dumps(answer).encode()

    # -- streams -------------------------------------------------------------------------------------------

    async def _pass_events(self, message: Message) -> None:
        self._rest += message.get("body", b"")
        events, separator, self._rest = self._rest.rpartition(_EVENT_END)
        more = message.get("more_body", False)
        out = events + separator
        if b'"usage"' in out or b'"error"' in out or b'"response"' in out:
            out = b"".join(self._event(event) + _EVENT_END for event in events.split(_EVENT_END))
        if not more:
            out, self._rest = out + self._rest, b""
        if out or not more:
            await self._send({**message, "body": out})

    def _event(self, event: bytes) -> bytes:
        lines = event.split(b"\n")
        return b"\n".join(self._data(line) if line.startswith(_DATA) else line for line in lines)

    def _data(self, line: bytes) -> bytes:
        try:
            chunk = json.loads(line[len(_DATA) :])
        except ValueError:
            return line
        if not isinstance(chunk, dict):
            return line
        if isinstance(chunk.get("error"), dict) and "choices" not in chunk:
            status = chunk["error"].get("code")
            status = status if isinstance(status, int) else 500
            return _DATA + self._error(status, chunk)
        if chunk.get("type") in _ENDS and isinstance(chunk.get("response"), dict):
            self._complete(chunk["response"])
        elif chunk.get("usage") and chunk.get("choices") == []:
            self._complete(chunk)
        else:
            return line
        return _DATA + json.dumps(chunk, separators=(",", ":")).encode()

    # -- both ----------------------------------------------------------------------------------------------

    def _error(self, status: int, answer: Any) -> bytes:
        return normalised_error(status, answer, self._exchange.request_id, self._path).body()

    def _complete(self, answer: dict[str, Any]) -> None:
        """Add `metrics.adaptive` and the usage of a prediction to a response or its final chunk."""
        usage = answer.get("usage")
        if isinstance(usage, dict):
            self._exchange.reported_tokens = usage.get("total_tokens")
            if self._exchange.predicted:
                details = usage.get("completion_tokens_details") or {}
                usage["completion_tokens_details"] = details | self._exchange.prediction_usage()
        metrics = self._exchange.metrics(details=self._details)
        if metrics is not None and isinstance(usage, dict):
            answer["metrics"] = (answer.get("metrics") or {}) | {"adaptive": metrics}


def normalised_error(status: int, answer: Any, request_id: str, path: str) -> EndpointError:
    """The gateway's own shape for an error of vLLM's server; what went wrong inside stays inside."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        error = {}
    if status >= 500 and status != 503:
        return EndpointError(
            status,
            f"the server failed: try again, and tell the operator request {request_id} if it fails again",
            code="internal_error",
            kind="server_error",
        )
    message = str(error.get("message") or f"the request was refused with status {status}")
    parameter = _parameter(error.get("param"), message, path)
    code = (
        "model_not_found" if (status, parameter) == (404, "model") else _CODES.get(status, "invalid_request")
    )
    return EndpointError(status, message, parameter=parameter, code=code)


def _parameter(named: Any, message: str, path: str) -> str | None:
    """The field at fault as the client wrote it; some of vLLM's errors name it in their first word only."""
    if isinstance(named, str):
        named = named.removeprefix("body.")
        return _TEXT_FIELDS.get(path, named) if named == "input_tokens" else named
    first = message.partition(" ")[0].strip("'`\"")
    return first if first in TABLES.get(path, ()) else None
