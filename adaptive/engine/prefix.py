"""Keeps blocks with a gap in the drafter's keys and values out of the prefix cache.

vLLM caches a request's full blocks when it allocates a step. Where that step leaves out the drafter's first
pass (the worker says so with the drafts of the step before), nothing that it decodes may be cached, nor
anything beyond the start of the request's open gap (gaps.py). Prefill never skips the drafter, so prompts are
cacheable as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaptive.engine.gaps import is_prefill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class PrefixGuard:
    """Caps what vLLM's KV cache coordinator may cache of each request."""

    def __init__(self) -> None:
        self.drafter_off = False
        """Whether the next step leaves out the drafter's first pass for requests that decode."""
        self._gap: dict[str, int] = {}
        self._never: set[str] = set()

    def install(self, coordinator: Any) -> None:
        """Put the cap between vLLM's KV cache manager and its coordinator."""
        cache_blocks = coordinator.cache_blocks

        def capped(request: Request, num_computed_tokens: int) -> None:
            cache_blocks(request, self.cacheable(request, num_computed_tokens))

        coordinator.cache_blocks = capped

    def admit(self, request_id: str, *, speculates: bool) -> None:
        """Note a request; one that never speculates never closes a gap, so its prompt alone is cacheable."""
        if not speculates:
            self._never.add(request_id)

    def forget(self, request_id: str) -> None:
        """The request ended."""
        self._gap.pop(request_id, None)
        self._never.discard(request_id)

    def cacheable(self, request: Request, tokens: int) -> int:
        """How many of a request's first `tokens` tokens are known to be whole."""
        whole = self._gap.get(request.request_id, tokens)
        if request.request_id in self._never:
            # A step of such requests alone skips the drafter whatever the worker said of the step.
            whole = request.num_prompt_tokens
        elif self.drafter_off:
            whole = min(whole, max(request.num_prompt_tokens, request.num_computed_tokens))
        return min(tokens, whole)

    def step(self, output: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """Note what a scheduled step does to the gaps of its requests."""
        cached = output.scheduled_cached_reqs
        positions = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        positions |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for request_id, tokens in output.num_scheduled_tokens.items():
            drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            position = positions[request_id]
            if request_id in self._never:
                continue
            if is_prefill(position, tokens, drafts, requests[request_id].num_prompt_tokens):
                self._gap.pop(request_id, None)
            elif self.drafter_off:
                self._gap.setdefault(request_id, position)
            else:
                self._gap.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._gap) + len(self._never)
