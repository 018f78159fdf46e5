"""The engine client under observation."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from adaptive.endpoint.exchange import CURRENT, Exchange
from adaptive.endpoint.observer import EngineObserver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

REPORT = [{"arm": "turbo", "version": 0, "verify_steps": 1, "drafted": 4, "accepted": 2}]


class Client:
    """Stands for vLLM's async client: yields the outputs a test processes."""

    def __init__(self) -> None:
        self.output_processor = SimpleNamespace(request_states={}, process_outputs=self._process)
        self.processed: list[Any] = []
        self.aborted: list[str] = []
        self.stopped: list[float | None] = []
        self.finished = asyncio.Event()

    def _process(self, outputs: list[Any], *arguments: Any) -> tuple[Any, ...]:
        self.processed += outputs
        return arguments

    async def generate(
        self, prompt: Any, params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[str, None]:
        """Two outputs, the second at the end."""
        state = SimpleNamespace(external_req_id=request_id, parent_req=None)
        child = SimpleNamespace(external_req_id="child", parent_req=state)
        self.output_processor.request_states |= {f"{request_id}-x": state, f"0_{request_id}": child}
        try:
            yield f"{prompt} {params}"
            await self.finished.wait()
            yield "end"
        except GeneratorExit:
            self.aborted.append(request_id)
            raise

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop."""
        self.stopped.append(timeout)


class Door:
    """Stands for the gateway."""

    def __init__(self, serving: int = 0) -> None:
        self.left = serving
        self.closed = False

    def drain(self) -> None:
        """Close."""
        self.closed = True

    def serving(self) -> int:
        """One request fewer every time."""
        self.left = max(self.left - 1, 0)
        return self.left


def output(request_id: str, tokens: int, transfer: Any = None) -> SimpleNamespace:
    """An output of the engine core."""
    return SimpleNamespace(request_id=request_id, new_token_ids=[1] * tokens, kv_transfer_params=transfer)


def test_reports_and_tokens_reach_their_request() -> None:
    """Answers of n > 1 count for the request they belong to; nothing of the report stays in the output."""

    async def serve() -> Exchange:
        client = Client()
        EngineObserver(client, Door())
        made = Exchange("id", "acme")
        token = CURRENT.set(made)
        stream = client.generate({"prompt_token_ids": [1, 2, 3]}, "params", "cmpl-id")
        CURRENT.reset(token)
        assert await anext(stream) == "{'prompt_token_ids': [1, 2, 3]} params"
        outputs = [
            output("cmpl-id-x", 4),
            output("0_cmpl-id", 2, {"adaptive": REPORT}),
            output("stranger", 9, {"adaptive": [], "theirs": 1}),
        ]
        assert client.output_processor.process_outputs(outputs, 1.5, None) == (1.5, None)
        assert [found.kv_transfer_params for found in client.processed] == [None, None, {"theirs": 1}]
        client.finished.set()
        assert [item async for item in stream] == ["end"]
        client.output_processor.process_outputs([output("cmpl-id-x", 100)])
        return made

    made = asyncio.run(serve())
    assert (made.prompt_tokens, made.generated_tokens, made.tokens) == (3, 6, 9)
    assert made.drafters == REPORT


def test_a_client_that_leaves_aborts_its_request() -> None:
    """Closing the stream closes the engine's, and what was generated is still counted."""

    async def serve() -> None:
        client = Client()
        EngineObserver(client, Door())
        CURRENT.set(Exchange("id", "acme"))
        stream = client.generate({}, "params", "cmpl-id")
        await anext(stream)
        await stream.aclose()
        assert client.aborted == ["cmpl-id"]

    asyncio.run(serve())


def test_nothing_reaches_the_engine_without_a_tenant() -> None:
    """A route that somebody opens by mistake cannot generate."""

    async def serve() -> None:
        client = Client()
        EngineObserver(client, Door())
        with pytest.raises(RuntimeError, match="cmpl-id has no tenant"):
            client.generate({}, "params", "cmpl-id")

    asyncio.run(serve())


def test_requests_in_flight_end_before_the_engine() -> None:
    """No more come in, those that are there go on, and the engine gets what is left of the time."""
    client, door = Client(), Door(serving=4)
    EngineObserver(client, door)
    client.shutdown(timeout=25)
    assert door.closed
    assert door.left == 0
    (left,) = client.stopped
    assert left is not None
    assert 24 < left < 24.9


def test_a_request_that_does_not_end_does_not_hold_the_engine() -> None:
    """After the timeout it is stopped with whatever still runs."""
    client, door = Client(), Door(serving=1_000_000)
    EngineObserver(client, door)
    started = time.monotonic()
    client.shutdown(timeout=0.2)
    assert 0.2 <= time.monotonic() - started < 2
    assert client.stopped == [0]
    client.shutdown()
    assert client.stopped == [0, None]
