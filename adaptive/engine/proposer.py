"""The V1 EAGLE-3 proposer, with adapters routed per request and as many passes as pay."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.eagle import EagleProposer

from adaptive.engine.adapters import Routing
from adaptive.engine.gaps import Pass, Rewrite, passes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adaptive.engine.draft import AdaptiveEagle3LlamaForCausalLM
    from adaptive.engine.speculation import DraftingStep

_LOG_ODDS_LIMIT = 20.0


class _EnoughDraftedError(Exception):
    """Ends vLLM's drafting loop: no request of the batch wants another pass."""


class AdaptiveProposer(EagleProposer):
    """Drafts greedily with turbo or an adapter, row by row."""

    model: AdaptiveEagle3LlamaForCausalLM
    _step: DraftingStep | None = None

    def prepare(self, slots: tuple[int, ...], step: DraftingStep | None = None) -> None:
        """Set each request's slot, in batch order, for the next `propose`, and who decides on its passes."""
        self._slots = slots
        self._step = step
        self.pass_seconds: list[float] = []
        """Of each pass of the last `propose`, the decisions before it included."""

    def propose(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draft, then leave no routing behind; the drafts are with the step, if there is one."""
        self._pass_started = time.perf_counter()
        try:
            drafts = super().propose(*args, **kwargs)
        except _EnoughDraftedError:
            drafts = self.arange.new_empty((len(self._slots), 0))
        finally:
            self._route(None)
        return drafts

    def rewrite(
        self,
        rewrites: Sequence[Rewrite],
        tokens_after: Callable[[int, int, int], Sequence[int]],
        metadata: CommonAttentionMetadata,
    ) -> None:
        """Run the first pass over positions that an earlier step left out; nothing is drafted.

        Args:
            rewrites: the positions and the target's features there.
            tokens_after: (row, position, count) to the ids at position + 1 and on.
            metadata: of the current batch, for its block tables.
        """
        self._route(None)
        for one in passes(rewrites, tokens_after, self.max_num_tokens):
            self._run_pass(one, metadata)

    def _run_pass(self, one: Pass, batch: CommonAttentionMetadata) -> None:
        tokens = one.input_ids.shape[0]
        mode, padded, across_ranks = self._determine_batch_execution_and_padding(tokens)
        self.input_ids[:tokens] = one.input_ids
        self._set_positions(tokens, one.positions)
        self.hidden_states[:tokens] = self.model.combine_hidden_states(one.features)
        lengths = one.lengths.to(batch.seq_lens.device)
        metadata = CommonAttentionMetadata(
            query_start_loc=one.query_start.to(lengths.device),
            query_start_loc_cpu=one.query_start,
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=one.lengths,
            num_reqs=one.rows.shape[0],
            num_actual_tokens=tokens,
            max_query_len=int(torch.diff(one.query_start).max()),
            max_seq_len=int(one.lengths.max()),
            block_table_tensor=batch.block_table_tensor[one.rows.to(lengths.device)],
            slot_mapping=one.slot_mapping(batch.block_table_tensor, self.block_size),
        )
        _, per_layer = self.build_per_group_and_layer_attn_metadata(metadata)
        inputs, size = self.build_model_inputs_first_pass(tokens, padded, None)
        with set_forward_context(
            per_layer,
            self.vllm_config,
            num_tokens=padded,
            num_tokens_across_dp=across_ranks,
            cudagraph_runtime_mode=mode,
            slot_mapping=self._get_slot_mapping(size, metadata.slot_mapping),
        ):
            self.model(**inputs)

    def set_inputs_first_pass(self, *args: Any, **kwargs: Any) -> Any:
        """First pass: adapters act on each request's last verified row only."""
        result = super().set_inputs_first_pass(*args, **kwargs)
        self._route(result[1])
        return result

    def _update_positions_dependent_metadata(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Later passes: one row per request, while any wants one.

        vLLM calls this first in each later pass, and keeps nothing across passes that an end here would leave
        half done.
        """
        if self._step is not None and not self._step.another():
            raise _EnoughDraftedError
        self._route(self.arange[: len(self._slots)])
        return super()._update_positions_dependent_metadata(*args, **kwargs)

    def _route(self, rows: torch.Tensor | None) -> None:
        adapters = self.model.adapters
        if adapters is not None:
            adapters.route(
                Routing(rows.long(), self._slots) if rows is not None and any(self._slots) else None
            )

    def _sample_draft_tokens(
        self,
        hidden_states: torch.Tensor,
        sampling_metadata: Any,  # noqa: ARG002  vLLM's signature; drafting is greedy whatever is sampled
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Greedy drafts; the confidence is the top token's log-odds, whatever is sampled later."""
        logits = self.model.draft_logits(hidden_states).float()
        top, draft_ids = logits.max(dim=-1)
        log_probability = top - logits.logsumexp(dim=-1)
        log_odds = log_probability - torch.log(-torch.expm1(log_probability))
        ids = self.model.to_target_ids(draft_ids)
        if self._step is not None:
            self._note(self._step, ids, log_odds.clamp(-_LOG_ODDS_LIMIT, _LOG_ODDS_LIMIT))
        return ids, None

    def _note(self, step: DraftingStep, ids: torch.Tensor, log_odds: torch.Tensor) -> None:
        """Hand a pass's drafts to the step."""
        now = time.perf_counter()
        (step.add if self.pass_seconds else step.first)(ids.tolist(), log_odds.tolist())
        self.pass_seconds.append(now - self._pass_started)
        self._pass_started = now
