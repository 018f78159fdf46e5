"""A literal, slow drafter: one slot at a time with an explicit KV cache, as a server runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import TracedSequence


def run_slot(
    head: Eagle3Head,
    adapter: Adapter | None,
    token: int,
    hidden: Tensor,
    position: int,
    cache: list[tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Append this slot's key and value to the cache; return (normed hidden [H], raw hidden [H])."""
    where = torch.tensor([[position]])
    x = head.layer_input(torch.tensor([[token]]), hidden[None, None])
    key, value = head.key_value(x, where)
    cache.append((key[0, 0], value[0, 0]))
    query = head.query(x, where, adapter, 1.0)[0, 0]
    group = head.config.num_attention_heads // head.config.num_key_value_heads
    keys = torch.stack([k for k, _ in cache]).repeat_interleave(group, dim=1)  # [slots, heads, head_dim]
    values = torch.stack([v for _, v in cache]).repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,shd->hs", query, keys) / head.config.head_dim**0.5
    attended = torch.einsum("hs,shd->hd", scores.softmax(-1), values).flatten()
    normed, out = head.finish(attended[None, None], hidden[None, None], adapter, 1.0)
    return normed[0, 0], out[0, 0]


def draft_from(
    head: Eagle3Head,
    adapter: Adapter | None,
    item: TracedSequence,
    slot: int,
    lookahead: int,
    forced: bool,
) -> tuple[list[int], list[Tensor]]:
    """Draft after verified slot `slot`: greedy token ids and normed hiddens.

    With `forced` the true tokens are fed back instead of the drafted ones, while they last.
    """
    cache: list[tuple[Tensor, Tensor]] = []
    normed = hidden = torch.empty(0)
    for t in range(item.feature_start, slot + 1):
        fused = head.fuse(item.features[t - item.feature_start])
        normed, hidden = run_slot(head, adapter, int(item.token_ids[t + 1]), fused, t, cache)
    tokens, hiddens = [], []
    for j in range(lookahead):
        hiddens.append(normed)
        drafted = int(head.draft_token_ids[head.lm_head(normed).argmax()])
        tokens.append(drafted)
        following = slot + 2 + j
        if forced and following >= len(item.token_ids):
            break
        token = int(item.token_ids[following]) if forced else drafted
        normed, hidden = run_slot(head, adapter, token, hidden, slot + 1 + j, cache)
    return tokens, hiddens
