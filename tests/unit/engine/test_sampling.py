"""The corrected expand kernel."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptive.engine.sampling import expand

DTYPES = st.sampled_from([torch.float32, torch.int32, torch.int64])


def expand_by_hand(values: list[int], counts: list[int], replace_from: int, replace_to: int) -> list[int]:
    """One token at a time."""
    expanded = []
    for value, count in zip(values, counts, strict=True):
        expanded += [replace_to if value == replace_from else value] * count
    return expanded


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), max_size=8),
    DTYPES,
    DTYPES.filter(lambda dtype: dtype is not torch.float32),
    st.integers(-3, 3),
    st.integers(-3, 3),
)
def test_every_token_gets_its_requests_value(
    requests: list[tuple[int, int]],
    dtype: torch.dtype,
    count_dtype: torch.dtype,
    replace_from: int,
    replace_to: int,
) -> None:
    """Equal to a loop over tokens for every dtype that sampling passes, requests without tokens included."""
    values = [value for value, _ in requests]
    counts = [count for _, count in requests]
    cumulative = torch.tensor(counts, dtype=count_dtype).cumsum(0, dtype=count_dtype)
    output = torch.full((sum(counts),), -99, dtype=dtype)
    expand(
        output,
        torch.tensor(values, dtype=dtype),
        cumulative,
        replace_from,
        replace_to,
        MAX_NUM_TOKENS=128,
    )
    assert output.dtype == dtype
    assert output.tolist() == expand_by_hand(values, counts, replace_from, replace_to)


def test_temperatures_keep_their_value() -> None:
    """Fractions survive (the stock kernel went through int64), and greedy's 0 becomes 1 as vLLM asks."""
    output = torch.full((5,), float("nan"))
    expand(output, torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 3, 5], dtype=torch.int32), 0, 1)
    torch.testing.assert_close(output, torch.tensor([0.7, 0.7, 1.0, 1.3, 1.3]), rtol=0, atol=0)


def test_inputs_stay_as_they_were() -> None:
    """Only `output` is written."""
    values, cumulative = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([1, 3], dtype=torch.int32)
    expand(torch.empty(3, dtype=torch.int32), values, cumulative, 0, 1)
    assert (values.tolist(), cumulative.tolist()) == ([0, 5], [1, 3])
