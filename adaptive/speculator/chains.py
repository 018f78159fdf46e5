"""Free-running draft chains: what a server would draft from every slot, beyond the first wrong token too.

`unroll` follows the true text and says whether drafts match it; here each slot goes on from its own drafts,
so tokens and confidences are those of a server's verify step that begins there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from adaptive.speculator.sequences import batches
from adaptive.speculator.unroll import attend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import Batch, TracedSequence

LOG_ODDS_LIMIT = 20.0


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """Drafts from each slot of one sequence.

    Attributes:
        tokens: int64 [slots, depth]; row i drafts from slot first_query + i, so tokens[i, 0] stands for
            token first_query + i + 2 of the sequence.
        log_odds: float32 [slots, depth], of the draft distribution's top token.
    """

    tokens: Tensor
    log_odds: Tensor


@torch.inference_mode()
def draft_chains(
    head: Eagle3Head, adapter: Adapter | None, sequences: Sequence[TracedSequence], depth: int
) -> list[Chains]:
    """Greedy chains of `depth` drafts from every query slot of every sequence."""
    device, dtype = head.fc.weight.device, head.fc.weight.dtype
    parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in sequences]
    for batch in batches(sequences):
        tokens, log_odds = _draft(head, adapter, batch.to(device, dtype), depth)
        for row, numbers in enumerate(batch.sequence):
            for index in numbers[numbers >= 0].unique().tolist():
                mine = numbers == index
                parts[index].append((tokens[row][mine], log_odds[row][mine]))
    empty = (torch.empty(0, depth, dtype=torch.int64), torch.empty(0, depth))
    return [Chains(*(part[0] if part else empty)) for part in parts]


def _draft(head: Eagle3Head, adapter: Adapter | None, batch: Batch, depth: int) -> tuple[Tensor, Tensor]:
    """Tokens and log-odds, each [B, Q, depth], on the CPU."""
    fused = head.fuse(batch.features)
    inputs = head.layer_input(batch.token_ids, fused)
    keys, values = head.key_value(inputs, batch.positions)
    index = batch.query_slot[:, :, None]
    x = inputs.gather(1, index.expand(-1, -1, inputs.shape[-1]))
    residual = fused.gather(1, index.expand(-1, -1, fused.shape[-1]))
    positions = batch.positions.gather(1, batch.query_slot)
    slot = torch.arange(batch.token_ids.shape[1], device=batch.token_ids.device)
    segment = batch.segment.gather(1, batch.query_slot)
    visible = (segment[:, :, None] == batch.segment[:, None, :]) & (slot <= index)
    ids = head.draft_token_ids
    own: list[tuple[Tensor, Tensor]] = []
    tokens: list[Tensor] = []
    log_odds: list[Tensor] = []
    for step in range(depth):
        if step:
            positions = positions + 1
            x = head.layer_input(tokens[-1], residual)
            own.append(head.key_value(x, positions))
        attended = attend(head.query(x, positions, adapter, 1.0), keys, values, visible, own)
        normed, residual = head.finish(attended, residual, adapter, 1.0)
        drafted, confidence = zip(*(_top(head, row) for row in normed), strict=True)
        tokens.append(ids[torch.stack(drafted)])
        log_odds.append(torch.stack(confidence))
    return torch.stack(tokens, -1).cpu(), torch.stack(log_odds, -1).cpu()


def _top(head: Eagle3Head, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Draft vocabulary row of the top token, [Q], and its log-odds."""
    logits = head.lm_head(hidden).float()
    top, rows = logits.max(dim=-1)
    log_probability = top - logits.logsumexp(dim=-1)
    log_odds = log_probability - torch.log(-torch.expm1(log_probability))
    return rows, log_odds.clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)
