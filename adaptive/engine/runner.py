"""The V1 runner on the CPU: requests to slots before drafting, verify steps to traces after verifying."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner, _torch_cuda_wrapper

from adaptive.engine.drafts import SourcedDraftTokenIds
from adaptive.engine.gaps import Gaps
from adaptive.engine.logits import target_processors
from adaptive.engine.proposer import AdaptiveProposer
from adaptive.engine.skipping import FirstPasses, StepView
from adaptive.engine.state import EngineState, feature_rows

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import DraftTokenIds

    from adaptive.engine.state import ActiveRequest


class AdaptiveCPUModelRunner(CPUModelRunner):
    """CPU model runner that drafts per tenant and records what was verified."""

    state: EngineState | None = None
    """Set by the worker once the models are loaded; None during warm-up."""

    drafter_off = False
    """Whether the step to come leaves out the drafter's first pass for requests that decode. Set between two
    steps, and told to the scheduler before it allocates the step (`SourcedDraftTokenIds.drafter_off`)."""

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
        longest = speculative.draft_model_config.max_model_len
        if longest < self.max_model_len:
            raise ValueError(
                f"turbo drafts up to {longest} positions and the engine serves {self.max_model_len}: lower "
                "ADAPTIVE_MAX_MODEL_LEN, or raise max_position_embeddings in turbo's config.json"
            )
        with _torch_cuda_wrapper():
            self.drafter = AdaptiveProposer(vllm_config, device, self)
        self.input_batch.logitsprocs = target_processors(vllm_config, device)
        row_bytes = speculative.draft_model_config.get_hidden_size() * 3 * self.dtype.itemsize
        self._first_passes = FirstPasses(Gaps.sized(self.max_num_reqs, row_bytes))
        self._positions: dict[str, int] = {}
        self._given_up: list[str] = []
        self._step_started = self._step_ended = 0.0
        self._execute_seconds = self._propose_seconds = 0.0
        self._proposed = False
        self._generator_states: dict[int, torch.Tensor] = {}

    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None) -> Any:
        """Admit and finish requests, then run the target."""
        if self.state is not None:
            for request_id in scheduler_output.finished_req_ids:
                self.state.finish(request_id)
                self._first_passes.gaps.forget(request_id)
            cached = scheduler_output.scheduled_cached_reqs
            self._positions = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            for new in scheduler_output.scheduled_new_reqs:
                assert new.sampling_params is not None
                self.state.begin(new.req_id, new.prompt_token_ids or [], new.sampling_params)
                self._positions[new.req_id] = new.num_computed_tokens
        self._step_started = time.perf_counter()
        if self.state is not None and self._step_ended and scheduler_output.scheduled_cached_reqs.req_ids:
            self.state.speculation.costs.observe_gap(self._step_started - self._step_ended)
        result = super().execute_model(scheduler_output, intermediate_tensors)
        self._execute_seconds = time.perf_counter() - self._step_started
        return result

    def propose_draft_token_ids(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> list[list[int]] | torch.Tensor:
        """Draft with each request's slot, as far as it pays, and decide whether the next step drafts at all.

        A batch that is off throughout, or which the load floor has off, runs the drafter for prefills only.
        """
        assert isinstance(self.drafter, AdaptiveProposer)
        self._proposed = True
        if self.state is None:
            self.drafter.prepare((0,) * len(self.input_batch.req_ids))
            return super().propose_draft_token_ids(scheduler_output, *args, **kwargs)
        started = time.perf_counter()
        speculation = self.state.speculation
        batch = self.state.plan_batch(self.input_batch.req_ids)
        emitted = self._emitted(args[0], len(batch))
        if all(request.lookahead == 0 for request in batch):
            self._skip_first_pass(scheduler_output, batch, emitted, *args[1:])
            self.state.withdraw(batch)
            drafts: list[list[int]] = [[] for _ in batch]
        else:
            step = speculation.start(
                batch, self.input_batch.req_ids, emitted, self._mean_context(scheduler_output)
            )
            if self.drafter_off:
                self._give_up(batch)
                self._skip_first_pass(scheduler_output, batch, emitted, *args[1:])
                made = speculation.without_drafter(step)
            else:
                self._resume_first_pass(scheduler_output, batch, *args)
                scheduler_output.num_spec_tokens_to_schedule = step.passes
                self.drafter.prepare(step.slots, step)
                super().propose_draft_token_ids(scheduler_output, *args, **kwargs)
                made = step.finish()
                self._observe_passes(scheduler_output, len(batch))
            self.state.drafted(batch, made)
            self.drafter_off = speculation.decide(step, drafter_off=self.drafter_off)
            drafts = [one.tokens for one in made]
        self._propose_seconds = time.perf_counter() - started
        return drafts

    def _give_up(self, batch: list[ActiveRequest]) -> None:
        """Leave requests without speculation until they end whose gap is as long as may be kept.

        Running the drafter over it costs, on a busy engine, more than the load floor may.
        """
        assert self.state is not None
        gaps = self._first_passes.gaps
        for request_id, request in zip(self.input_batch.req_ids, batch, strict=True):
            if gaps.room(request_id) <= self.num_spec_tokens + 1 and request.lookahead:
                request.lookahead = 0
                gaps.forget(request_id)
                self._given_up.append(request_id)

    def _emitted(self, sampled_token_ids: torch.Tensor, rows: int) -> list[list[int]]:
        """Tokens per row of the batch; none for a partial prefill, whose sample is discarded."""
        sampled = [[token for token in row if token != -1] for row in sampled_token_ids.tolist()]
        for row in self.discard_request_mask.np[:rows].nonzero()[0]:
            sampled[row] = []
        return sampled

    def _mean_context(self, scheduler_output: SchedulerOutput) -> float:
        scheduled = scheduler_output.num_scheduled_tokens
        return sum(self._positions[name] + tokens for name, tokens in scheduled.items()) / len(scheduled)

    def _observe_passes(self, scheduler_output: SchedulerOutput, rows: int) -> None:
        assert self.state is not None
        assert isinstance(self.drafter, AdaptiveProposer)
        costs = self.state.speculation.costs
        for number, seconds in enumerate(self.drafter.pass_seconds):
            if number:
                costs.observe_next_pass(rows, seconds)
            else:
                costs.observe_first_pass(scheduler_output.total_num_scheduled_tokens, seconds)

    def _observe_target(self, scheduler_output: SchedulerOutput, seconds: float) -> None:
        assert self.state is not None
        pairs = sum(
            tokens * (self._positions[name] + tokens / 2)
            for name, tokens in scheduler_output.num_scheduled_tokens.items()
        )
        self.state.speculation.costs.observe_target(
            scheduler_output.total_num_scheduled_tokens, pairs, seconds
        )

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The drafts for the scheduler, with who made them and what the next step will do."""
        taken = super().take_draft_token_ids()
        if taken is None or self.state is None:
            return taken
        given_up, self._given_up = self._given_up, []
        return SourcedDraftTokenIds(
            taken.req_ids,
            taken.draft_token_ids,
            made_by=[request.drafted_by for request in self.state.plan_batch(taken.req_ids)],
            drafter_off=self.drafter_off,
            given_up=given_up,
        )

    def _input_fits_in_drafter(self, common_attn_metadata: CommonAttentionMetadata | None) -> bool:
        """Draft for the whole batch even where one request is close to the model's length limit.

        vLLM would skip the drafter for all of them, prefills included, and leave gaps in cached blocks.
        Drafts beyond the limit are cut by the scheduler; the proposer writes no keys and values for them.
        """
        return common_attn_metadata is not None

    def _step_view(self, scheduler_output: SchedulerOutput, batch: list[ActiveRequest]) -> StepView:
        request_ids = self.input_batch.req_ids
        return StepView(
            request_ids=request_ids,
            positions=self._positions,
            scheduled=scheduler_output.num_scheduled_tokens,
            drafts=scheduler_output.scheduled_spec_decode_tokens,
            prompt_lengths=[self.requests[request_id].num_prompt_tokens for request_id in request_ids],
            speculates=[request.lookahead > 0 for request in batch],
            token_ids=self.input_batch.token_ids_cpu,
        )

    def _skip_first_pass(
        self,
        scheduler_output: SchedulerOutput,
        batch: list[ActiveRequest],
        emitted: list[list[int]],
        *others: Any,
    ) -> None:
        """Leave out the drafter's first pass for the rows that decode; `others` are vLLM's arguments."""
        assert isinstance(self.drafter, AdaptiveProposer)
        _, _, _, auxiliary, _, metadata, _ = others
        view = self._step_view(scheduler_output, batch)
        self._first_passes.skip(view, emitted, auxiliary, self.drafter, metadata)

    def _resume_first_pass(
        self, scheduler_output: SchedulerOutput, batch: list[ActiveRequest], *others: Any
    ) -> None:
        """Close the gaps of a batch whose first pass follows; `others` are vLLM's arguments."""
        assert isinstance(self.drafter, AdaptiveProposer)
        if len(self._first_passes.gaps):
            view = self._step_view(scheduler_output, batch)
            self._first_passes.resume(view, self.drafter, others[6])

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
        self.state.withdraw(batch)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Verify and draft as vLLM does, then record the step."""
        executed = self.execute_model_state
        self._save_discarded_generators()
        if self.state is None or executed is None:
            return super().sample_tokens(grammar_output)
        batch = self.state.plan_batch(self.input_batch.req_ids)
        made_by = [request.drafted_by for request in batch]
        confidences = [request.confidences for request in batch]
        early = [request.early for request in batch]
        self._proposed = False
        self._propose_seconds = 0.0
        started = time.perf_counter()
        output = super().sample_tokens(grammar_output)
        self._step_ended = time.perf_counter()
        self._observe_target(
            executed.scheduler_output,
            self._execute_seconds + self._step_ended - started - self._propose_seconds,
        )
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
            self.state.record(
                request,
                drafted,
                emitted,
                made_by[index],
                confidences[index],
                seconds,
                early=early[index],
                context=self._positions[request_id],
            )
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
