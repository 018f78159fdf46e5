"""Batched low-rank deltas on the GPU: rows of different tenants in one launch, safe inside CUDA graphs.

Two Triton kernels per module. `_shrink` computes A x split along the input, `_expand` sums the parts and adds
w * B (A x). Every program reads the slot of its row first and ends at once where it is 0, so a graph captured
with all rows costs little for turbo's. Parts are summed in a fixed order: the result does not depend on what
else is in the batch. The method is that of batched gather matrix-vector kernels (Chen et al., Punica, 2023).
"""

# Triton kernels and torch.library are untyped.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

PARTS: Final = 16
"""Programs that share one row's A x."""
_BLOCK_IN: Final = 256
_BLOCK_OUT: Final = 128


@triton.jit
def _shrink(  # noqa: ANN202
    x,  # noqa: ANN001
    a,  # noqa: ANN001
    slots,  # noqa: ANN001
    partial,  # noqa: ANN001
    features_in,  # noqa: ANN001
    x_stride,  # noqa: ANN001
    part_length,  # noqa: ANN001
    RANK: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot == 0:
        return
    rank = tl.arange(0, RANK)
    total = tl.zeros([RANK], dtype=tl.float32)
    begin = part * part_length
    end = tl.minimum(begin + part_length, features_in)
    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < end
        value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        tile = tl.load(
            a + slot * RANK * features_in + rank[:, None] * features_in + column[None, :],
            mask=inside[None, :],
            other=0.0,
        ).to(tl.float32)
        total += tl.sum(tile * value[None, :], axis=1)
    tl.store(partial + (row * PARTS + part) * RANK + rank, total)


@triton.jit
def _expand(  # noqa: ANN202
    out,  # noqa: ANN001
    b,  # noqa: ANN001
    weight,  # noqa: ANN001
    slots,  # noqa: ANN001
    partial,  # noqa: ANN001
    features_out,  # noqa: ANN001
    out_stride,  # noqa: ANN001
    first,  # noqa: ANN001
    RANK: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot == 0:
        return
    scale = tl.load(weight + slot)
    if scale == 0.0:
        return
    rank = tl.arange(0, RANK)
    part = tl.arange(0, PARTS)
    hidden = tl.sum(
        tl.load(partial + (row * PARTS + part[:, None]) * RANK + rank[None, :]),
        axis=0,
    )
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features_out
    tile = tl.load(
        b + slot * features_out * RANK + column[:, None] * RANK + rank[None, :],
        mask=inside[:, None],
        other=0.0,
    ).to(tl.float32)
    delta = scale * tl.sum(tile * hidden[None, :], axis=1)
    place = out + row * out_stride + first + column
    before = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, (before + delta).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _route(row_slots, request_slots, index, last_rows, requests, BY_ROW: tl.constexpr):  # noqa: ANN001, ANN202, N803
    i = tl.program_id(0)
    request = tl.load(index + i)
    slot = tl.load(request_slots + request, mask=(request >= 0) & (i < requests), other=0)
    if BY_ROW:
        tl.store(row_slots + i, slot)
    else:
        tl.store(row_slots + tl.load(last_rows + i), slot, mask=i < requests)


def add(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor,
    slots: torch.Tensor,
    first: int,
) -> None:
    """Add w * B (A x) to columns of `out` in place, each row with the adapter of its slot.

    Args:
        out: [tokens, columns], the base module's output.
        x: [tokens, in].
        a: [slots, rank, in], rank a power of two.
        b: [slots, out, rank].
        weight: float32 [slots].
        slots: int32 [at least tokens], 0 leaves a row bitwise as it is.
        first: column of `out` where this module's output begins.
    """
    tokens, features_in = x.shape
    if tokens == 0:
        return
    rank, features_out = a.shape[1], b.shape[1]
    partial = torch.empty(tokens, PARTS, rank, dtype=torch.float32, device=x.device)
    length = triton.cdiv(triton.cdiv(features_in, PARTS), _BLOCK_IN) * _BLOCK_IN
    _shrink[tokens, PARTS](
        x, a, slots, partial, features_in, x.stride(0), length, RANK=rank, PARTS=PARTS, BLOCK=_BLOCK_IN
    )
    _expand[tokens, triton.cdiv(features_out, _BLOCK_OUT)](
        out,
        b,
        weight,
        slots,
        partial,
        features_out,
        out.stride(0),
        first,
        RANK=rank,
        PARTS=PARTS,
        BLOCK=_BLOCK_OUT,
    )


def route_last_rows(
    row_slots: torch.Tensor,
    request_slots: torch.Tensor,
    index: torch.Tensor,
    last_rows: torch.Tensor,
    requests: int,
) -> None:
    """Give the last row of each request its slot, every other row 0, without a host synchronisation.

    Args:
        row_slots: int32 [tokens], overwritten.
        request_slots: int32 [requests], slot by the runner's request index.
        index: [>= requests], each batch row's request index, -1 where padded.
        last_rows: [>= requests], row of each request's last token.
        requests: how many are in the batch.
    """
    row_slots.zero_()
    _route[requests,](row_slots, request_slots, index, last_rows, requests, BY_ROW=False)


def route_each_row(
    row_slots: torch.Tensor, request_slots: torch.Tensor, index: torch.Tensor, requests: int
) -> None:
    """Give row i the slot of request i; rows of a captured graph's padding get 0."""
    _route[index.shape[0],](row_slots, request_slots, index, index, requests, BY_ROW=True)


def _nothing(*_: Any) -> None:
    """Shape inference: the operator returns nothing."""


_LIBRARY: Final = torch.library.Library("adaptive", "FRAGMENT")
_LIBRARY.define(
    "low_rank_add(Tensor(a!) out, Tensor x, Tensor a, Tensor b, Tensor weight, Tensor slots, int first) -> ()"
)
_LIBRARY.impl("low_rank_add", add, "CUDA")
_LIBRARY.impl("low_rank_add", _nothing, "Meta")
torch.library.register_fake("adaptive::low_rank_add", _nothing, lib=_LIBRARY, allow_override=True)
