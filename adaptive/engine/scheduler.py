"""Per-request lookahead: the scheduler keeps what a request may verify, and sums up who drafted it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from adaptive.contracts import Arm
from adaptive.engine.drafts import Source, SourcedDraftTokenIds
from adaptive.engine.prefix import PrefixGuard
from adaptive.engine.report import DraftersReport
from adaptive.engine.request import RequestPlan

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

_UNKNOWN: Source = (Arm.TURBO, 0)


class AdaptiveScheduler(Scheduler):
    """Synchronous vLLM scheduler with a lookahead per request (0: no speculation)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.connector is not None:
            raise ValueError(
                "the adaptive scheduler does not work with a KV connector: start the engine without "
                "--kv-transfer-config"
            )
        self._lookahead: dict[str, int] = {}
        self._prefix = PrefixGuard()
        self._prefix.install(self.kv_cache_manager.coordinator)
        self._made_by: dict[str, Source] = {}
        self._report = DraftersReport()
        self._reported_always: set[str] = set()
        # Any lookup turns off vLLM's padding of one-token requests with placeholder drafts, which exists for
        # full CUDA graphs only and would be counted as rejected drafts.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)

    def add_request(self, request: Request) -> None:
        """Note the request's lookahead, then queue it."""
        params = request.sampling_params
        plan = RequestPlan.of(params)
        request_id = request.request_id
        self._lookahead[request_id] = plan.capped_lookahead(self.num_spec_tokens)
        self._report.begin(request_id, plan.group)
        self._prefix.admit(request_id, speculates=self._lookahead[request_id] > 0)
        if params is not None and params.stop:
            # A stop string is found in the API server, which then ends the request by itself.
            self._reported_always.add(request_id)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Schedule as vLLM does and forget the requests that ended."""
        output = super().schedule(*args, **kwargs)
        self._prefix.step(output, self.requests)
        for request_id in output.finished_req_ids:
            self._lookahead.pop(request_id, None)
            self._made_by.pop(request_id, None)
            self._reported_always.discard(request_id)
            self._report.end(request_id)
            self._prefix.forget(request_id)
        return output

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Cut each request's drafts to its own lookahead and note who made them."""
        if isinstance(draft_token_ids, SourcedDraftTokenIds):
            self._made_by.update(zip(draft_token_ids.req_ids, draft_token_ids.made_by, strict=True))
            self._prefix.drafter_off = draft_token_ids.drafter_off
            for request_id in draft_token_ids.given_up:
                if request_id in self._lookahead:
                    self._lookahead[request_id] = 0
                    self._prefix.admit(request_id, speculates=False)
        cut = [
            drafts[: self._lookahead.get(request_id, self.num_spec_tokens)]
            for request_id, drafts in zip(
                draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True
            )
        ]
        super().update_draft_token_ids(DraftTokenIds(draft_token_ids.req_ids, cut))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Sum up the verify steps; outputs that end a request carry its sums (see `report`)."""
        for request_id, drafted in scheduler_output.scheduled_spec_decode_tokens.items():
            row = model_runner_output.req_id_to_index.get(request_id)
            emitted = model_runner_output.sampled_token_ids[row] if row is not None else ()
            if emitted and request_id in self._lookahead:
                source = self._made_by.get(request_id, _UNKNOWN)
                self._report.verified(request_id, source, len(drafted), len(emitted) - 1)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        for sent in outputs.values():
            for output in sent.outputs:
                if output.request_id in self._lookahead and (
                    output.finish_reason is not None or output.request_id in self._reported_always
                ):
                    output.kv_transfer_params = self._report.of(output.request_id)
        return outputs
