"""Attention of one new token per row over a static KV cache, reading only what each row has filled."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if HAS_TRITON:
    import triton  # only on machines with a GPU
    import triton.language as tl  # same

    @triton.jit  # type: ignore[untyped-decorator]  # same
    def _kernel(  # type: ignore[no-untyped-def]  # noqa: ANN202  # Triton's own annotations
        q_ptr, k_ptr, v_ptr, out_ptr, position_ptr, scale,  # noqa: ANN001  # Triton infers these
        KV: tl.constexpr, GROUP: tl.constexpr, LENGTH: tl.constexpr,  # noqa: N803  # constants to Triton
        DIM: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803  # constants to Triton
    ):  # fmt: skip
        program = tl.program_id(0)
        filled = tl.load(position_ptr + program // KV) + 1
        head = tl.arange(0, 16)
        dim = tl.arange(0, DIM)
        q_offset = program * GROUP * DIM + head[:, None] * DIM + dim[None, :]
        q = tl.load(q_ptr + q_offset, mask=head[:, None] < GROUP, other=0.0)
        base = program.to(tl.int64) * LENGTH * DIM
        peak = tl.full([16], float("-inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, DIM], tl.float32)
        for start in range(0, filled, BLOCK):
            slot = start + tl.arange(0, BLOCK)
            offset = base + slot[:, None] * DIM + dim[None, :]
            k = tl.load(k_ptr + offset, mask=slot[:, None] < filled, other=0.0)
            v = tl.load(v_ptr + offset, mask=slot[:, None] < filled, other=0.0)
            score = tl.dot(q, tl.trans(k)) * scale
            score = tl.where(slot[None, :] < filled, score, float("-inf"))
            higher = tl.maximum(peak, tl.max(score, 1))
            mass = tl.exp(score - higher[:, None])
            fade = tl.exp(peak - higher)
            total = total * fade + tl.sum(mass, 1)
            acc = acc * fade[:, None] + tl.dot(mass.to(v.dtype), v)
            peak = higher
        tl.store(out_ptr + q_offset, (acc / total[:, None]).to(q.dtype), mask=head[:, None] < GROUP)


def attend(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Attention of q [B, heads, d] over one layer's keys and values [B, kv, L, d]; returns [B, heads, d].

    `positions` int64 [B] is the last filled slot of each row.
    """
    b, heads, dim = q.shape
    kv, length = keys.shape[1:3]
    if HAS_TRITON and (q.is_cuda or INTERPRETED):
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        kernel: Any = _kernel
        kernel[(b * kv,)](
            q.contiguous(), keys, values, out, positions, dim**-0.5,
            KV=kv, GROUP=heads // kv, LENGTH=length, DIM=dim, BLOCK=64,
        )  # fmt: skip
        return out
    mask = torch.arange(length, device=q.device) <= positions[:, None]
    grouped = q.view(b, kv, heads // kv, dim)
    return functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask[:, None, None]).view(
        q.shape
    )
