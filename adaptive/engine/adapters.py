"""Low-rank adapter rows beside the drafter's linears, picked per request by slot index.

The buffers are static tensors written in place: `A[slots, rank, in]`, `B[slots, out, rank]`, `w[slots]`. Slot
0 is all zeros and skipped. delta(x) = w * B(A x), added to the output of q, o, gate, up and down projections
of the drafter's last layer; fc, k, v and the norms stay turbo's, so the drafter's KV cache is the same for
every tenant and version (design, Serving 4).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Routing:
    """Which rows of the current drafter pass use which slot.

    Only rows that are sampled from need an adapter: the other rows of a first pass only write keys and
    values, which adapters leave alone.
    """

    rows: torch.Tensor
    """int64 [requests]: row of each request in the pass."""
    slots: tuple[int, ...]
    """Slot of each request, in the order of `rows`."""

    def groups(self) -> list[tuple[int, torch.Tensor]]:
        """(slot, rows) for every slot other than turbo's."""
        distinct = {slot for slot in self.slots if slot}
        if len(distinct) == 1 and 0 not in self.slots:
            return [(distinct.pop(), self.rows)]
        slots = torch.tensor(self.slots, dtype=torch.int64)
        return [(slot, self.rows[slots == slot]) for slot in sorted(distinct)]


class AdapterBuffers(nn.Module):
    """The resident adapters of one engine."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, int]], slots: int, rank: int, dtype: torch.dtype
    ) -> None:
        """Allocate zeroed buffers.

        Args:
            shapes: module name -> (in features, out features).
            slots: rows, slot 0 (turbo) included.
            rank: rank of every adapter.
            dtype: dtype in which deltas are computed; they are added in the activations' dtype.
        """
        super().__init__()
        self.shapes = dict(shapes)
        self.slots = slots
        self.rank = rank
        for name, (features_in, features_out) in self.shapes.items():
            self.register_buffer(
                f"{name}_a", torch.zeros(slots, rank, features_in, dtype=dtype), persistent=False
            )
            self.register_buffer(
                f"{name}_b", torch.zeros(slots, features_out, rank, dtype=dtype), persistent=False
            )
        self.weight: list[float] = [0.0] * slots
        self._groups: list[tuple[int, torch.Tensor]] = []

    def route(self, routing: Routing | None) -> None:
        """Set the rows and slots of the next drafter pass; None: turbo for all."""
        self._groups = routing.groups() if routing is not None else []

    def write(self, slot: int, tensors: Mapping[str, torch.Tensor], weight: float) -> None:
        """Overwrite one slot in place with `<module>.A` [rank, in] and `<module>.B` [out, rank] tensors."""
        assert 0 < slot < self.slots, f"slot {slot} cannot hold an adapter"
        for name in self.shapes:
            self.get_buffer(f"{name}_a")[slot].copy_(tensors[f"{name}.A"])
            self.get_buffer(f"{name}_b")[slot].copy_(tensors[f"{name}.B"])
        self.weight[slot] = weight

    def clear(self, slot: int) -> None:
        """Overwrite one slot with zeros: nothing of its adapter stays in memory."""
        assert 0 < slot < self.slots, f"slot {slot} cannot hold an adapter"
        for buffer in self.buffers():
            buffer[slot].zero_()
        self.weight[slot] = 0.0

    def add_delta(self, name: str, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add the routed rows' deltas of module `name` to `out` in place.

        Args:
            name: module name, a key of `shapes`.
            x: [tokens, in], the module's input.
            out: [tokens, out], its output (a view is fine).
        """
        for slot, rows in self._groups:
            weight = self.weight[slot]
            if weight == 0.0:
                continue
            down = self.get_buffer(f"{name}_a")[slot]
            low = torch.nn.functional.linear(x[rows].to(down.dtype), down)
            delta = torch.nn.functional.linear(low, self.get_buffer(f"{name}_b")[slot])
            out.index_add_(0, rows, delta.to(out.dtype), alpha=weight)


class AdaptedLinear(nn.Module):
    """A vLLM linear whose output gets the deltas of one or more stacked projections."""

    def __init__(self, base: nn.Module, buffers: AdapterBuffers, parts: Sequence[tuple[str, slice]]) -> None:
        """Wrap `base`; `parts` are (module name, columns of the output) pairs."""
        super().__init__()
        self.base = base
        self.parts = tuple(parts)
        # Kept out of the module tree: the draft model owns the buffers, this is a reference.
        self._buffers_ref = (buffers,)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (output, bias) as vLLM's linears do."""
        out, bias = self.base(x)
        for name, columns in self.parts:
            self._buffers_ref[0].add_delta(name, x, out[..., columns])
        return out, bias
