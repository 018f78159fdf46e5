"""SIGTERM at a real endpoint. The last file by name, because it ends the server that all of them use."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import openai

from tests.integration.endpoint.server import MODEL

if TYPE_CHECKING:
    from tests.integration.endpoint.server import Server

TOKENS = 120


def test_requests_in_flight_end_and_no_more_come_in(server: Server) -> None:
    """A stream goes on to its last event, new requests are turned away, and the process ends with 0."""
    messages: Any = [{"role": "user", "content": "Tell a long story."}]
    stream = server.client().chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    other = server.client("other")
    events = iter(stream)
    next(events)
    server.process.send_signal(signal.SIGTERM)
    terminated = time.monotonic()
    refused: openai.APIError | None = None
    while refused is None:
        assert time.monotonic() < terminated + 10
        try:
            other.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
        except (openai.APIConnectionError, openai.InternalServerError) as error:
            refused = error
    if isinstance(refused, openai.InternalServerError):
        assert (refused.status_code, refused.code) == (503, "draining")
    chunks = list(events)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == TOKENS
    assert server.process.wait(30) == 0
