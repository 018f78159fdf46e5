"""Per-request lookahead: the scheduler asks for and keeps only as many drafts as each request may verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from adaptive.engine.config import EngineConfig
from adaptive.engine.request import RequestPlan

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class AdaptiveScheduler(Scheduler):
    """Synchronous vLLM scheduler with a lookahead per request (0: no speculation)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = EngineConfig.from_additional_config(self.vllm_config.additional_config)
        self._cap = min(self.num_spec_tokens, config.lookahead if config else self.num_spec_tokens)
        self._lookahead: dict[str, int] = {}
        # Any lookup turns off vLLM's padding of one-token requests with placeholder drafts, which exists for
        # full CUDA graphs only and would be counted as rejected drafts.
        self.dynamic_sd_lookup = [self._cap] * (self.max_num_running_reqs + 1)

    def add_request(self, request: Request) -> None:
        """Note the request's lookahead, then queue it."""
        params = request.sampling_params
        plan = RequestPlan.from_extra_args(params.extra_args if params else None)
        self._lookahead[request.request_id] = plan.capped_lookahead(self._cap)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Ask the drafter for as many passes as the longest lookahead of the batch needs."""
        output = super().schedule(*args, **kwargs)
        for request_id in output.finished_req_ids:
            self._lookahead.pop(request_id, None)
        output.num_spec_tokens_to_schedule = max(
            (self._lookahead.get(request_id, self._cap) for request_id in output.num_scheduled_tokens),
            default=0,
        )
        return output

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Cut each request's drafts to its own lookahead."""
        cut = [
            drafts[: self._lookahead.get(request_id, self._cap)]
            for request_id, drafts in zip(
                draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True
            )
        ]
        super().update_draft_token_ids(DraftTokenIds(draft_token_ids.req_ids, cut))
