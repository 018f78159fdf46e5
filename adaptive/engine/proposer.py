"""The V1 EAGLE-3 proposer, with adapters routed per request and the drafts' confidences kept."""

from __future__ import annotations

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

_LOG_ODDS_LIMIT = 20.0


class AdaptiveProposer(EagleProposer):
    """Drafts greedily with turbo or an adapter, row by row."""

    model: AdaptiveEagle3LlamaForCausalLM

    def prepare(self, slots: tuple[int, ...]) -> None:
        """Set the slot of each request, in batch order, for the next `propose`."""
        self._slots = slots
        self._confidences: list[torch.Tensor] = []

    def confidences(self) -> list[list[float]]:
        """Top log-odds per request and drafted position of the last `propose`."""
        if not self._confidences:
            return [[] for _ in self._slots]
        rows: list[list[float]] = torch.stack(self._confidences, dim=1).tolist()
        return rows

    def propose(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draft, then leave no routing behind."""
        try:
            return super().propose(*args, **kwargs)
        finally:
            self._route(None)

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
        """Later passes: one row per request."""
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
        self._confidences.append(log_odds.clamp(-_LOG_ODDS_LIMIT, _LOG_ODDS_LIMIT))
        return self.model.to_target_ids(draft_ids), None
