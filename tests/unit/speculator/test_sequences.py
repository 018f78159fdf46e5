"""Packing and collation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptive.speculator.sequences import TracedSequence, batches, pack_rows, pack_step


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(1, 50))
def test_packing_keeps_every_sequence_once_and_within_capacity(lengths: list[int], capacity: int) -> None:
    """Every non-empty sequence is in one row; rows hold at most the capacity, or one longer sequence."""
    rows = pack_rows(lengths, capacity)
    assert sorted(i for row in rows for i in row) == [i for i, length in enumerate(lengths) if length]
    for row in rows:
        assert sum(lengths[i] for i in row) <= capacity or len(row) == 1


@given(st.lists(st.integers(5, 30), min_size=200, max_size=300))
def test_packing_fills_rows(lengths: list[int]) -> None:
    """Rows are more than 90 % full when there is enough to choose from."""
    rows = pack_rows(lengths, 128)
    assert sum(lengths) > 0.9 * 128 * (len(rows) - 1)


@given(st.lists(st.tuples(st.integers(3, 60), st.integers(1, 60)), min_size=1, max_size=12))
def test_no_step_pads_more_than_a_tenth(sizes: list[tuple[int, int]]) -> None:
    """Whatever the lengths, neither slots nor draft positions of a step are more than 10 % padding."""
    made = [
        TracedSequence(torch.arange(n), min(answer, n), 0, torch.zeros(n, 3), torch.zeros(n, 2))
        for n, answer in sizes
    ]
    if not any(item.queries for item in made):
        with pytest.raises(ValueError, match="no sequence has a position to draft at"):
            pack_step(made)
        return
    batch = pack_step(made)
    assert batch.padding <= 0.1
    assert batch.query_count == sum(item.queries for item in made)
    found = {(int(i), int(t)) for i, t in zip(batch.sequence[batch.span >= 0], batch.labels[batch.span >= 0])}  # noqa: B905
    assert found == {
        (i, t)
        for i, item in enumerate(made)
        for t in range(item.first_query + 2, len(item.token_ids))
        if item.queries
    }


def test_attention_looks_at_short_blocks_only() -> None:
    """Short requests share a block, long ones have their own, and blocks cover the row without overlap."""
    lengths = (100, 120, 900, 30, 400, 200)
    made = [TracedSequence(torch.arange(n), 10, 0, torch.zeros(n, 3), torch.zeros(n, 2)) for n in lengths]
    blocks = pack_step(made).blocks
    assert blocks is not None
    assert [block.last_slot - block.first_slot for block in blocks] == [216, 898, 426, 198]
    assert [block.first_slot for block in blocks] == [0, *(block.last_slot for block in blocks[:-1])]
    assert [block.first_query for block in blocks] == [0, *(block.last_query for block in blocks[:-1])]


def test_batches_cover_every_query(sequences: list[TracedSequence]) -> None:
    """Each known draft position appears once, with its label and the state of the position before."""
    seen = set()
    for batch in batches(
        sequences, row_slots=24, rows_per_batch=1, generator=torch.Generator().manual_seed(1)
    ):
        for b, q in (batch.span >= 0).nonzero().tolist():
            index, slot = int(batch.sequence[b, q]), int(batch.query_slot[b, q])
            item, t = sequences[index], int(batch.positions[b, slot])
            assert batch.labels[b, q] == item.token_ids[t + 2]
            assert batch.token_ids[b, slot] == item.token_ids[t + 1]
            assert torch.equal(batch.features[b, slot], item.features[t - item.feature_start])
            assert torch.equal(batch.teacher_hidden[b, q], item.last_hidden[t + 1 - item.feature_start])
            seen.add((index, t))
    expected = {
        (i, t) for i, item in enumerate(sequences) for t in range(item.first_query, len(item.token_ids) - 2)
    }
    assert seen == expected


def test_inconsistent_sequences_are_refused() -> None:
    """A row count that does not fit the tokens is named at once, not found as a shifted feature later."""
    tokens = torch.arange(5)
    with pytest.raises(ValueError, match="features has 5 rows, token_ids and feature_start ask for 4"):
        TracedSequence(tokens, 2, 1, torch.zeros(5, 3), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="answer_start 9 is outside the 5 tokens"):
        TracedSequence(tokens, 9, 0, torch.zeros(5, 3), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="rejected has 4 entries for 5 tokens"):
        TracedSequence(tokens, 2, 0, torch.zeros(5, 3), torch.zeros(5, 2), torch.zeros(4, dtype=torch.bool))
