"""Adapter buffers for captured CUDA graphs: only the contents of static tensors change between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from adaptive.engine.adapters import AdapterBuffers

if TYPE_CHECKING:
    from collections.abc import Mapping


class MirroredWeights(list[float]):
    """The slots' weights on the host, each write repeated in a tensor on the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Mirror into `tensor`, float32 [slots]."""
        super().__init__([0.0] * tensor.shape[0])
        self._tensor = tensor

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set one slot's weight, in stream order after the steps launched so far."""
        super().__setitem__(index, value)
        self._tensor[index] = value


class GraphAdapterBuffers(AdapterBuffers):
    """Resident adapters picked per row by a tensor of slots instead of a routing made on the host."""

    row_slots: torch.Tensor
    weight_values: torch.Tensor

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        slots: int,
        rank: int,
        dtype: torch.dtype,
        tokens: int,
    ) -> None:
        """Allocate as the base class does, plus slots of at most `tokens` rows a pass.

        Raises:
            ValueError: the rank is not a power of two.
        """
        if rank & (rank - 1):
            raise ValueError(
                f"rank must be a power of two on the GPU, got {rank}: set ADAPTIVE_RANK to 8 or 16"
            )
        super().__init__(shapes, slots, rank, dtype)
        self.register_buffer("row_slots", torch.zeros(tokens, dtype=torch.int32), persistent=False)
        self.register_buffer("weight_values", torch.zeros(slots, dtype=torch.float32), persistent=False)
        self.weight = MirroredWeights(self.weight_values)

    def clear(self, slot: int) -> None:
        """Overwrite one slot with zeros; the rows' slots stay."""
        for name in self.shapes:
            self.get_buffer(f"{name}_a")[slot].zero_()
            self.get_buffer(f"{name}_b")[slot].zero_()
        self.weight[slot] = 0.0

    def add_delta(self, name: str, x: torch.Tensor, out: torch.Tensor, first: int = 0) -> None:
        """Add the rows' deltas to `out` from column `first` on, in place (see low_rank.add)."""
        torch.ops.adaptive.low_rank_add(
            out,
            x,
            getattr(self, f"{name}_a"),
            getattr(self, f"{name}_b"),
            self.weight_values,
            self.row_slots,
            first,
        )
