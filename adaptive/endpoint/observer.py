"""Watches vLLM's engine client: which request belongs to whom, what it used, and who drafted for it.

Nothing reaches the engine through the client without a tenant's request around it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from adaptive.endpoint.exchange import CURRENT, Exchange
from adaptive.engine.report import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_DRAIN_POLL_SECONDS: Final = 0.05


class Door(Protocol):
    """Where requests come in."""

    def drain(self) -> None:
        """Let no more in."""

    def serving(self) -> int:
        """Requests whose responses are not finished."""


class EngineObserver:
    """Wraps three methods of one `AsyncLLM` in place.

    Args:
        client: vLLM's engine client.
        door: closed when vLLM's server begins to drain, before the engine does.
    """

    def __init__(self, client: Any, door: Door) -> None:
        self._exchanges: dict[str, Exchange] = {}
        self._output_processor = client.output_processor
        self._generate = client.generate
        self._process_outputs = client.output_processor.process_outputs
        self._shutdown = client.shutdown
        self._door = door
        client.generate = self.generate
        client.output_processor.process_outputs = self.process_outputs
        client.shutdown = self.shutdown

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """As the client's; the prompt's tokens are counted at once.

        Raises:
            RuntimeError: no tenant's request is being served.
        """
        exchange = CURRENT.get()
        if exchange is None:
            raise RuntimeError(f"request {request_id} has no tenant: it did not come through the gateway")
        if isinstance(prompt, dict):
            exchange.prompt_tokens += len(prompt.get("prompt_token_ids") or ())
        return self._follow(exchange, prompt, sampling_params, request_id, *args, **kwargs)

    async def _follow(
        self,
        exchange: Exchange,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *args: Any,
        **kwargs: Any,
    ) -> AsyncGenerator[Any, None]:
        self._exchanges[request_id] = exchange
        outputs = self._generate(prompt, sampling_params, request_id, *args, **kwargs)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()  # aborts the request in the engine where the client went away
            self._exchanges.pop(request_id, None)

    def process_outputs(self, engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        """Take the drafters' report out of the engine's outputs and count generated tokens."""
        for output in engine_core_outputs:
            report = output.kv_transfer_params.pop(KEY, None) if output.kv_transfer_params else None
            if not output.kv_transfer_params:
                output.kv_transfer_params = None  # never an empty object in a response
            exchange = self._exchange_of(output.request_id)
            if exchange is None:
                continue
            exchange.generated_tokens += len(output.new_token_ids)
            if report is not None:
                exchange.drafters = report
        return self._process_outputs(engine_core_outputs, *args, **kwargs)

    def _exchange_of(self, internal_id: str) -> Exchange | None:
        state = self._output_processor.request_states.get(internal_id)
        if state is None:
            return None
        # The answers of one request with n > 1 have ids of their own below their parent's.
        owner = state.parent_req if state.parent_req is not None else state
        return self._exchanges.get(owner.external_req_id)

    def shutdown(self, timeout: float | None = None) -> None:
        """Let no more requests in, wait for those in flight, then stop the engine as the client does.

        vLLM's server calls it from a thread at SIGTERM. It would stop sending as soon as the engine has no
        more to do, which may be before the last events have reached a client.

        Args:
            timeout: seconds for all of it.
        """
        self._door.drain()
        deadline = time.monotonic() + (timeout or 0)
        while self._door.serving() and time.monotonic() < deadline:
            time.sleep(_DRAIN_POLL_SECONDS)
        self._shutdown(timeout=max(deadline - time.monotonic(), 0) if timeout is not None else None)
