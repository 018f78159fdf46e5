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


@dataclasses.dataclass(frozen=True, slots=True)
class _Grouped:
    """The rows of a routing that an adapter acts on, those of one slot side by side."""

    rows: torch.Tensor
    """int64 [routed]."""
    groups: tuple[tuple[int, int, int], ...]
    """(slot, first, end) in `rows`."""
    weight: float | torch.Tensor
    """w of every row, [routed, 1] where they differ."""


def _group(routing: Routing, weights: Sequence[float], dtype: torch.dtype) -> _Grouped | None:
    """Sort a routing by slot, without turbo's rows and those of weight 0; None when nothing is left."""
    order = sorted(
        (index for index, slot in enumerate(routing.slots) if slot and weights[slot] != 0.0),
        key=routing.slots.__getitem__,
    )
    if not order:
        return None
    slots = [routing.slots[index] for index in order]
    begins = [index for index, slot in enumerate(slots) if index == 0 or slots[index - 1] != slot]
    ends = [*begins[1:], len(slots)]
    used = [weights[slot] for slot in slots]
    whole = order == list(range(len(routing.slots)))
    return _Grouped(
        routing.rows if whole else routing.rows[torch.tensor(order, device=routing.rows.device)],
        tuple((slots[begin], begin, end) for begin, end in zip(begins, ends, strict=True)),
        used[0]
        if len(set(used)) == 1
        else torch.tensor(used, dtype=dtype, device=routing.rows.device).unsqueeze(1),
    )


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
        self._dtype = dtype
        for name, (features_in, features_out) in self.shapes.items():
            self.register_buffer(
                f"{name}_a", torch.zeros(slots, rank, features_in, dtype=dtype), persistent=False
            )
            self.register_buffer(
                f"{name}_b", torch.zeros(slots, features_out, rank, dtype=dtype), persistent=False
            )
        self.weight: list[float] = [0.0] * slots
        self._grouped: _Grouped | None = None

    def route(self, routing: Routing | None) -> None:
        """Set the rows and slots of the next drafter pass; None: turbo for all."""
        self._grouped = _group(routing, self.weight, self._dtype) if routing is not None else None

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

    def add_delta(self, name: str, x: torch.Tensor, out: torch.Tensor, first: int = 0) -> None:
        """Add the routed rows' deltas of module `name` to columns of `out` in place.

        Args:
            name: module name, a key of `shapes`.
            x: [tokens, in], the module's input.
            out: [tokens, columns], its output, or that of a stack of modules.
            first: column of `out` where the module's own begin.
        """
        grouped = self._grouped
        if grouped is None:
            return
        down, up = self.get_buffer(f"{name}_a"), self.get_buffer(f"{name}_b")
        inputs = x.index_select(0, grouped.rows).to(down.dtype)
        # Rows of one slot share its matrices; gathering matrices per row for one bmm moves three times the
        # bytes and takes 1.3 to 7 times as long on the CPU.
        if len(grouped.groups) == 1:
            slot = grouped.groups[0][0]
            delta = torch.mm(torch.mm(inputs, down[slot].t()), up[slot].t())
        else:
            delta = inputs.new_empty(inputs.shape[0], up.shape[1])
            for slot, begin, end in grouped.groups:
                torch.mm(torch.mm(inputs[begin:end], down[slot].t()), up[slot].t(), out=delta[begin:end])
        weight = grouped.weight
        if isinstance(weight, torch.Tensor):
            delta.mul_(weight)
            weight = 1.0
        columns = out[..., first : first + up.shape[1]]
        columns.index_add_(0, grouped.rows, delta.to(out.dtype), alpha=weight)


class AdaptedLinear(nn.Module):
    """A vLLM linear whose output gets the deltas of one or more stacked projections."""

    def __init__(self, base: nn.Module, buffers: AdapterBuffers, parts: Sequence[tuple[str, int]]) -> None:
        """Wrap `base`; `parts` are (module name, first column of its output) pairs."""
        super().__init__()
        self.base = base
        self.parts = tuple(parts)
        # Kept out of the module tree: the draft model owns the buffers, this is a reference.
        self._buffers_ref = (buffers,)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (output, bias) as vLLM's linears do."""
        out, bias = self.base(x)
        for name, first in self.parts:
            self._buffers_ref[0].add_delta(name, x, out, first)
        return out, bias
