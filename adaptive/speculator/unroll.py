"""Unrolled drafting along the true continuation ("training-time test", EAGLE-3, arXiv 2503.01840).

Pass 1 runs the head on the target's features, as after a verify step. Pass j runs it on its own hidden
state of pass j-1, shifted by one slot, as the j-th drafted token of a verify step that began j-1 slots
earlier. In pass j a query at slot t therefore attends to the pass-1 keys of slots <= t-j+1 (what the KV
cache held at that verify step), and to one key of each later pass i at slot t-j+i (what the drafter itself
wrote since).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adaptive.speculator.sequences import Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import Batch


def unroll(
    head: Eagle3Head, adapter: Adapter | None, batch: Batch, depth: int, weight: float | Tensor = 1.0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each pass (normed hidden [B, Q, H] for the LM head, reachable bool [B, Q]).

    A query is reachable in pass j if a verify step can have begun j-1 slots earlier in its span and each
    token drafted since is in the draft vocabulary. Unreachable queries hold meaningless values.
    """
    fused = head.fuse(batch.features)
    x_all = head.layer_input(batch.token_ids, fused)
    keys, values = head.key_value(x_all, batch.positions)
    positions = batch.positions.gather(1, batch.query_slot)
    tokens = batch.token_ids.gather(1, batch.query_slot)
    x, residual = _rows(x_all, batch.query_slot), _rows(fused, batch.query_slot)
    reachable = batch.span >= 0
    draftable = head.t2d[tokens]
    not_first = torch.arange(tokens.shape[1], device=tokens.device) > 0
    own: list[tuple[Tensor, Tensor]] = []
    hidden = residual
    for j in range(depth):
        if j:
            residual = _shift(hidden)
            x = head.layer_input(tokens, residual)
            own = [(_shift(key), _shift(value)) for key, value in own] + [head.key_value(x, positions)]
            reachable = _shift(reachable) & (batch.span == _shift(batch.span)) & draftable & not_first
        query = head.query(x, positions, adapter, weight)
        attended = _attend_in_blocks(batch, query, keys, values, own)
        normed, hidden = head.finish(attended, residual, adapter, weight)
        yield normed, reachable


def _attend_in_blocks(
    batch: Batch, query: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Attention of the pass that has as many own keys as passes came before it; as `attend`."""
    whole = Block(0, batch.query_slot.shape[1], 0, batch.token_ids.shape[1])
    slot = torch.arange(batch.token_ids.shape[1], device=batch.token_ids.device)
    query_segment = batch.segment.gather(1, batch.query_slot)
    parts = []
    for block in batch.blocks or (whole,):
        q, s = slice(block.first_query, block.last_query), slice(block.first_slot, block.last_slot)
        visible = query_segment[:, q, None] == batch.segment[:, None, s]
        visible &= slot[s] <= batch.query_slot[:, q, None] - len(own)
        mine = [(key[:, q], value[:, q]) for key, value in own]
        parts.append(attend(query[:, q], keys[:, s], values[:, s], visible, mine))
    return torch.cat(parts, dim=1)


def attend(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, own: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """Attention over the visible slots plus one own key per earlier pass.

    Args:
        query: [B, Q, heads, head_dim].
        keys: [B, S, kv_heads, head_dim].
        values: [B, S, kv_heads, head_dim].
        visible: bool [B, Q, S].
        own: pairs [B, Q, kv_heads, head_dim]; query q sees row q of each.

    Returns:
        [B, Q, heads * head_dim]. Softmax in float32. Rows that see nothing give finite values.
    """
    b, n, heads, size = query.shape
    kv = keys.shape[2]
    group = heads // kv
    q = query.view(b, n, kv, group, size).permute(0, 2, 3, 1, 4) * size**-0.5  # [B, kv, group, Q, size]
    flat = q.reshape(b, kv, group * n, size)
    scores = (flat @ keys.permute(0, 2, 3, 1)).view(b, kv, group, n, -1).float()
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    extra = [(q * key.permute(0, 2, 1, 3)[:, :, None]).float().sum(-1, keepdim=True) for key, _ in own]
    peak = scores.detach().amax(-1, keepdim=True)
    for score in extra:
        peak = torch.maximum(peak, score.detach())
    peak = peak.clamp(min=torch.finfo(torch.float32).min)
    mass = torch.exp(scores - peak)
    total = mass.sum(-1, keepdim=True)
    out = (
        (mass.to(values.dtype).view(b, kv, group * n, -1) @ values.permute(0, 2, 1, 3)).view(q.shape).float()
    )
    for score, (_, value) in zip(extra, own, strict=True):
        part = torch.exp(score - peak)
        total = total + part
        out = out + part * value.permute(0, 2, 1, 3)[:, :, None].float()
    out = out / total.clamp(min=1e-20)
    return out.to(query.dtype).permute(0, 3, 1, 2, 4).reshape(b, n, heads * size)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[-1]))


def _shift(x: Tensor) -> Tensor:
    """Move query q to q+1; query 0 keeps its value (later passes cannot reach it)."""
    return torch.cat([x[:, :1], x[:, :-1]], dim=1)
