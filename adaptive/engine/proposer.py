"""The V1 EAGLE-3 proposer, with adapters routed per request and the drafts' confidences kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.spec_decode.eagle import EagleProposer

from adaptive.engine.adapters import Routing

if TYPE_CHECKING:
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
