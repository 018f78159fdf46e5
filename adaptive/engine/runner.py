"""The V1 runner on the CPU: requests to slots before drafting, verify steps to traces after verifying."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner, _torch_cuda_wrapper

from adaptive.contracts import Arm
from adaptive.engine.logits import target_processors
from adaptive.engine.proposer import AdaptiveProposer
from adaptive.engine.state import EngineState, feature_rows

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput

    from adaptive.engine.state import ActiveRequest


class AdaptiveCPUModelRunner(CPUModelRunner):
    """CPU model runner that drafts per tenant and records what was verified."""

    state: EngineState | None = None
    """Set by the worker once the models are loaded; None during warm-up."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        speculative = vllm_config.speculative_config
        if speculative is None or speculative.method != "eagle3":
            raise ValueError(
                "the adaptive plugin needs an EAGLE-3 speculative config: pass --speculative-config with "
                "method eagle3"
            )
        if speculative.draft_sample_method != "greedy":
            raise ValueError(
                f"draft_sample_method {speculative.draft_sample_method!r} is not supported: use greedy, "
                "which keeps the target's distribution by rejection sampling"
            )
        with _torch_cuda_wrapper():
            self.drafter = AdaptiveProposer(vllm_config, device, self)
        self.input_batch.logitsprocs = target_processors(vllm_config, device)
        self._positions: dict[str, int] = {}
        self._step_started = 0.0
        self._proposed = False
        self._generator_states: dict[int, torch.Tensor] = {}

    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None) -> Any:
        """Admit and finish requests, then run the target."""
        if self.state is not None:
            for request_id in scheduler_output.finished_req_ids:
                self.state.finish(request_id)
            cached = scheduler_output.scheduled_cached_reqs
            self._positions = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            for new in scheduler_output.scheduled_new_reqs:
                assert new.sampling_params is not None
                self.state.begin(new.req_id, new.prompt_token_ids or [], new.sampling_params)
                self._positions[new.req_id] = new.num_computed_tokens
        self._step_started = time.perf_counter()
        return super().execute_model(scheduler_output, intermediate_tensors)

    def propose_draft_token_ids(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> list[list[int]] | torch.Tensor:
        """Draft with each request's slot; a batch that is off throughout runs no drafter pass at all.

        Requests that are off stay off until they end, and their blocks never enter another arm's prefix cache
        (their cache salt differs), so the gap this leaves in the drafter's KV cache is never read.
        """
        assert isinstance(self.drafter, AdaptiveProposer)
        self._proposed = True
        if self.state is None:
            self.drafter.prepare((0,) * len(self.input_batch.req_ids))
            return super().propose_draft_token_ids(scheduler_output, *args, **kwargs)
        batch = self.state.plan_batch(self.input_batch.req_ids)
        self.drafter.prepare(tuple(request.slot for request in batch))
        if all(request.arm is Arm.OFF for request in batch):
            self.state.drafted(batch, [[] for _ in batch])
            return torch.empty((len(batch), 0), dtype=torch.int64)
        drafts = super().propose_draft_token_ids(scheduler_output, *args, **kwargs)
        self.state.drafted(batch, self.drafter.confidences())
        return drafts

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Take back the random numbers of partial prefills without vLLM's CUDA-only way of doing so.

        The sample of a partial prefill is discarded. vLLM then rewinds the request's generator by its offset,
        which CPU generators do not have: a seeded request whose prompt is prefilled in chunks would end the
        engine.
        """
        generators = self.input_batch.generators
        discarded = {row: generators.pop(row) for row in self._generator_states}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            for row, generator in discarded.items():
                generator.set_state(self._generator_states[row])
            generators.update(discarded)

    def _save_discarded_generators(self) -> None:
        """Remember the generator states of rows whose sample will be discarded."""
        rows = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0]
        generators = self.input_batch.generators
        self._generator_states = {
            int(row): generators[int(row)].get_state() for row in rows if int(row) in generators
        }

    def _withdraw_placeholders(self, batch: list[ActiveRequest]) -> None:
        """Verify nothing in the next step when this one could not draft.

        Close to the model's length limit vLLM skips the drafter for the whole batch and schedules token 0 as
        every request's draft, which would be counted, and recorded, as rejected drafts of their arms.
        """
        assert self.state is not None
        self._draft_token_ids = torch.empty((len(batch), 0), dtype=torch.int64)
        self.state.drafted(batch, [[] for _ in batch])

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Verify and draft as vLLM does, then record the step."""
        executed = self.execute_model_state
        self._save_discarded_generators()
        if self.state is None or executed is None:
            return super().sample_tokens(grammar_output)
        batch = self.state.plan_batch(self.input_batch.req_ids)
        made_by = [request.drafted_by for request in batch]
        confidences = [request.confidences for request in batch]
        self._proposed = False
        output = super().sample_tokens(grammar_output)
        if not self._proposed:
            self._withdraw_placeholders(batch)
        seconds = (time.perf_counter() - self._step_started) / max(len(batch), 1)
        scheduled = executed.scheduler_output
        begin = 0
        for index, request in enumerate(batch):
            request_id = self.input_batch.req_ids[index]
            emitted = output.sampled_token_ids[output.req_id_to_index[request_id]]
            drafted = scheduled.scheduled_spec_decode_tokens.get(request_id, [])
            tokens = scheduled.num_scheduled_tokens[request_id]
            self.state.record(request, drafted, emitted, made_by[index], confidences[index], seconds)
            if request.recorder is not None and request.features:
                # Rows of rejected drafts belong to tokens that never were.
                kept = tokens - (len(drafted) - max(len(emitted) - 1, 0))
                rows = feature_rows(
                    self._positions[request_id],
                    begin,
                    kept,
                    executed.aux_hidden_states,
                    executed.hidden_states,
                )
                self.state.keep_features(request, rows)
            begin += tokens
        return output
