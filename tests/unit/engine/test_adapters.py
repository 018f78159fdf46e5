"""Adapter rows against a dense reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adaptive.engine.adapters import AdaptedLinear, AdapterBuffers, Routing

SHAPES = {"q_proj": (6, 4), "down_proj": (5, 3)}
SLOTS = 4
RANK = 2


def random_tensors(generator: torch.Generator, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """A random adapter."""
    tensors = {}
    for name, (features_in, features_out) in SHAPES.items():
        tensors[f"{name}.A"] = torch.randn(RANK, features_in, generator=generator, dtype=dtype)
        tensors[f"{name}.B"] = torch.randn(features_out, RANK, generator=generator, dtype=dtype)
    return tensors


def zero_tensors() -> dict[str, torch.Tensor]:
    """An adapter of zeros."""
    return {name: torch.zeros_like(tensor) for name, tensor in random_tensors(torch.Generator()).items()}


@pytest.fixture
def buffers() -> AdapterBuffers:
    """Float64 buffers whose slots 1 to 3 hold random adapters of weights 1, 0.5 and 0.25."""
    made = AdapterBuffers(SHAPES, SLOTS, RANK, torch.float64)
    generator = torch.Generator().manual_seed(1)
    for slot in range(1, SLOTS):
        made.write(slot, random_tensors(generator), 1 / 2 ** (slot - 1))
    return made


def dense(
    buffers: AdapterBuffers, name: str, x: torch.Tensor, out: torch.Tensor, rows: list[int], slots: list[int]
) -> torch.Tensor:
    """The same deltas through one full matrix per request."""
    expected = out.clone()
    for row, slot in zip(rows, slots, strict=True):
        a, b = buffers.get_buffer(f"{name}_a")[slot], buffers.get_buffer(f"{name}_b")[slot]
        expected[row] += buffers.weight[slot] * (b @ a) @ x[row]
    return expected


@given(data=st.data(), seed=st.integers(0, 1000))
def test_add_delta_equals_the_dense_reference(data: st.DataObject, seed: int) -> None:
    """Rows of any slots in any order each get their own adapter, all other rows stay as they were."""
    generator = torch.Generator().manual_seed(seed)
    buffers = AdapterBuffers(SHAPES, SLOTS, RANK, torch.float64)
    for slot in range(1, SLOTS):
        buffers.write(slot, random_tensors(generator), data.draw(st.sampled_from([0.0, 0.3, 1.0])))
    tokens = data.draw(st.integers(1, 9))
    rows = data.draw(st.lists(st.integers(0, tokens - 1), unique=True, max_size=tokens))
    slots = data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=len(rows), max_size=len(rows)))
    buffers.route(Routing(torch.tensor(rows, dtype=torch.int64), tuple(slots)))
    for name, (features_in, features_out) in SHAPES.items():
        x = torch.randn(tokens, features_in, generator=generator, dtype=torch.float64)
        out = torch.randn(tokens, features_out, generator=generator, dtype=torch.float64)
        expected = dense(buffers, name, x, out, rows, slots)
        buffers.add_delta(name, x, out)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_turbo_rows_are_bitwise_untouched(buffers: AdapterBuffers) -> None:
    """Slot 0, unsampled rows, weight 0, an adapter of zeros and no routing add exactly nothing."""
    x = torch.randn(4, 6, dtype=torch.float64)
    out = torch.randn(4, 4, dtype=torch.float64)
    before = out.clone()
    buffers.write(2, zero_tensors(), 1.0)
    poison = {name: torch.full_like(tensor, torch.nan) for name, tensor in zero_tensors().items()}
    buffers.write(3, poison, 0.0)
    for routing in (
        None,
        Routing(torch.tensor([0, 1]), (0, 0)),
        Routing(torch.tensor([2]), (2,)),
        Routing(torch.tensor([3, 0]), (3, 0)),
        Routing(torch.tensor([], dtype=torch.int64), ()),
    ):
        buffers.route(routing)
        buffers.add_delta("q_proj", x, out)
        assert torch.equal(out, before)
    buffers.route(Routing(torch.tensor([1]), (1,)))
    buffers.add_delta("q_proj", x, out)
    assert torch.equal(out[[0, 2, 3]], before[[0, 2, 3]])
    assert not torch.equal(out[1], before[1])


def test_routing_none_clears_the_last_routing(buffers: AdapterBuffers) -> None:
    """A pass without routing is turbo's, whatever the pass before it did."""
    buffers.route(Routing(torch.tensor([0]), (1,)))
    buffers.route(None)
    out = torch.zeros(1, 4, dtype=torch.float64)
    buffers.add_delta("q_proj", torch.ones(1, 6, dtype=torch.float64), out)
    assert torch.equal(out, torch.zeros_like(out))


def test_writes_are_in_place_and_leave_other_slots_alone(buffers: AdapterBuffers) -> None:
    """The buffers keep their addresses (CUDA graphs hold them) and their dtype."""
    pointers = [buffer.data_ptr() for buffer in buffers.buffers()]
    others = [buffer[[0, 1, 3]].clone() for buffer in buffers.buffers()]
    new = random_tensors(torch.Generator().manual_seed(9), torch.float32)
    buffers.write(2, new, 0.5)
    assert [buffer.data_ptr() for buffer in buffers.buffers()] == pointers
    for buffer, kept in zip(buffers.buffers(), others, strict=True):
        assert torch.equal(buffer[[0, 1, 3]], kept)
    torch.testing.assert_close(buffers.get_buffer("q_proj_a")[2], new["q_proj.A"].double())
    assert buffers.weight == [0.0, 1.0, 0.5, 0.25]


@pytest.mark.parametrize("slot", [0, -1, SLOTS])
def test_only_slots_beside_turbo_can_be_written(buffers: AdapterBuffers, slot: int) -> None:
    """Slot 0 stays turbo's zeros."""
    with pytest.raises(AssertionError, match=f"slot {slot} cannot hold an adapter"):
        buffers.write(slot, random_tensors(torch.Generator()), 1.0)
    assert not buffers.get_buffer("q_proj_a")[0].any()


def test_rows_of_a_slot_are_computed_together(buffers: AdapterBuffers) -> None:
    """Side by side in slot order, each with its weight; turbo's rows and those of weight 0 are left out."""
    buffers.weight[3] = 0.0
    buffers.route(Routing(torch.tensor([7, 5, 3, 1, 0]), (2, 0, 1, 2, 3)))
    grouped = buffers._grouped
    assert grouped is not None
    assert grouped.rows.tolist() == [3, 7, 1]
    assert grouped.groups == ((1, 0, 1), (2, 1, 3))
    assert isinstance(grouped.weight, torch.Tensor)
    assert grouped.weight.tolist() == [[1.0], [0.5], [0.5]]
    buffers.route(Routing(torch.tensor([4, 2]), (2, 2)))
    assert buffers._grouped is not None
    assert (buffers._grouped.groups, buffers._grouped.weight) == (((2, 0, 2),), 0.5)


class Stacked(nn.Module):
    """A linear as vLLM has them: two projections stacked, output and bias returned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return x W^T and no bias."""
        return x @ self.weight.T, None


def test_adapted_linear_adds_to_its_columns_only() -> None:
    """Each part's delta lands in its own columns of the stacked output; the bias passes through."""
    shapes = {"gate_proj": (6, 4), "up_proj": (6, 4)}
    buffers = AdapterBuffers(shapes, 2, RANK, torch.float64)
    generator = torch.Generator().manual_seed(4)
    tensors = {}
    for name in shapes:
        tensors[f"{name}.A"] = torch.randn(RANK, 6, generator=generator, dtype=torch.float64)
        tensors[f"{name}.B"] = torch.randn(4, RANK, generator=generator, dtype=torch.float64)
    buffers.write(1, tensors, 0.5)
    base = Stacked()
    linear = AdaptedLinear(base, buffers, [("gate_proj", 2), ("up_proj", 6)])
    x = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    buffers.route(Routing(torch.tensor([0, 2]), (1, 1)))
    out, bias = linear(x)
    expected = x @ base.weight.T
    for name, columns in (("gate_proj", slice(2, 6)), ("up_proj", slice(6, 10))):
        delta = 0.5 * x @ (tensors[f"{name}.B"] @ tensors[f"{name}.A"]).T
        expected[[0, 2], columns] += delta[[0, 2]]
    assert bias is None
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_adapted_linears_share_the_buffers_without_owning_them() -> None:
    """The draft model's state holds each buffer once, and none of them is saved."""
    buffers = AdapterBuffers(SHAPES, 2, RANK, torch.float64)
    linear = AdaptedLinear(Stacked(), buffers, [("q_proj", 0)])
    assert list(linear.buffers()) == []
    assert buffers.state_dict() == {}
