"""Leaves out the drafter's first pass in steps that ask for no model drafts, and makes it good later.

Between the V1 runner's tables (requests, token ids, block tables) and the pure bookkeeping of gaps.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from adaptive.engine.gaps import Gaps, Part, Rewrite, is_prefill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

    from adaptive.engine.proposer import AdaptiveProposer


@dataclasses.dataclass(frozen=True, slots=True)
class StepView:
    """What a step did, per row of the batch."""

    request_ids: Sequence[str]
    positions: Mapping[str, int]
    """Request -> position of its first token in the step."""
    scheduled: Mapping[str, int]
    """Request -> tokens computed, drafts included."""
    drafts: Mapping[str, Sequence[int]]
    """Request -> drafts verified; absent: none."""
    prompt_lengths: Sequence[int]
    speculates: Sequence[bool]
    """Whether the row's request may draft again before it ends."""
    token_ids: np.ndarray
    """[rows, max_model_len]: prompt and output ids, valid up to the step's first draft."""

    def draft_count(self, request_id: str) -> int:
        """Drafts the step verified for a request."""
        return len(self.drafts.get(request_id, ()))

    def prefill(self, row: int) -> bool:
        """Whether the step computes known tokens of the row."""
        request_id = self.request_ids[row]
        return is_prefill(
            self.positions[request_id],
            self.scheduled[request_id],
            self.draft_count(request_id),
            self.prompt_lengths[row],
        )


class FirstPasses:
    """Which first passes of the drafter were left out, and the passes that make up for them."""

    def __init__(self, gaps: Gaps) -> None:
        self.gaps = gaps

    def skip(
        self,
        view: StepView,
        sampled: Sequence[Sequence[int]],
        auxiliary: Sequence[torch.Tensor],
        proposer: AdaptiveProposer,
        metadata: CommonAttentionMetadata,
    ) -> None:
        """Leave out the first pass of a step, but for the rows it prefills.

        Args:
            view: the step.
            sampled: per row the ids it sampled, padded with -1; empty where a partial prefill's is discarded.
            auxiliary: per feature layer [tokens, hidden].
            proposer: runs the passes.
            metadata: of the step.
        """
        emitted = [[token for token in row if token != -1] for row in sampled]
        parts: list[Part] = []
        begin = 0
        for row, request_id in enumerate(view.request_ids):
            tokens = view.scheduled[request_id]
            rejected = view.draft_count(request_id) - max(len(emitted[row]) - 1, 0)
            parts.append(
                Part(
                    request_id,
                    row,
                    view.positions[request_id],
                    begin,
                    tokens - rejected,
                    view.prefill(row),
                    view.speculates[row],
                )
            )
            begin += tokens
        self._run(self.gaps.skip(parts, auxiliary), view, emitted, proposer, metadata)

    def resume(self, view: StepView, proposer: AdaptiveProposer, metadata: CommonAttentionMetadata) -> None:
        """Close every gap of the batch: the step's own first pass follows."""
        if not len(self.gaps):
            return
        rows = [(request_id, row, view.prefill(row)) for row, request_id in enumerate(view.request_ids)]
        self._run(self.gaps.close(rows), view, [[] for _ in rows], proposer, metadata)

    @staticmethod
    def _run(
        rewrites: Sequence[Rewrite],
        view: StepView,
        emitted: Sequence[Sequence[int]],
        proposer: AdaptiveProposer,
        metadata: CommonAttentionMetadata,
    ) -> None:
        def tokens_after(row: int, position: int, count: int) -> Sequence[int]:
            request_id = view.request_ids[row]
            # The step's drafts, and what they became, follow the tokens that were known before it.
            known = view.positions[request_id] + view.scheduled[request_id] - view.draft_count(request_id)
            first = position + 1
            ids: list[int] = view.token_ids[row, first : min(first + count, known)].tolist()
            missing = first + count - max(known, first)
            if missing <= 0:
                return ids
            # A prefill that ends inside the prompt samples nothing: its next token is the prompt's.
            begin = max(first - known, 0)
            return ids + (
                list(emitted[row][begin : begin + missing])
                or view.token_ids[row, known + begin : known + begin + missing].tolist()
            )

        if rewrites:
            proposer.rewrite(rewrites, tokens_after, metadata)
