"""Offline acceptance is what a literal server counts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch

from adaptive.speculator.adapter import Adapter, AdapterConfig
from adaptive.speculator.evaluation import SequenceCount, teacher_forced, walk
from adaptive.speculator.sequences import TracedSequence

from .server import draft_from

if TYPE_CHECKING:
    from adaptive.speculator.head import Eagle3Head


def likely(head: Eagle3Head, item: TracedSequence, adapter: Adapter | None) -> TracedSequence:
    """The same request with an answer that the drafter often guesses: its own drafts, with some misses."""
    tokens = item.token_ids.clone()
    for t in range(item.first_query, len(tokens) - 2):
        if t % 4 != 3:
            current = dataclasses.replace(item, token_ids=tokens)
            tokens[t + 2] = draft_from(head, adapter, current, t, 1, forced=False)[0][0]
    return dataclasses.replace(item, token_ids=tokens)


@pytest.mark.parametrize("lookahead", [1, 2, 4])
def test_walk_equals_a_literal_server(
    head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence], lookahead: int
) -> None:
    """Verify steps, accepted drafts and positions agree with drafting and comparing one step at a time."""
    items = [likely(head, item, adapter) for item in sequences]
    counts, per_position, censored = [], [0] * lookahead, 0
    for item in items:
        steps = accepted = 0
        slot, last = item.first_query, len(item.token_ids) - 1
        while slot + 2 <= last:
            drafted, _ = draft_from(head, adapter, item, slot, lookahead, forced=False)
            hits = 0
            while (
                hits < lookahead
                and slot + 2 + hits <= last
                and drafted[hits] == item.token_ids[slot + 2 + hits]
            ):
                hits += 1
            if hits < lookahead and slot + 2 + hits > last:
                censored += 1
                break
            steps, accepted = steps + 1, accepted + hits
            for j in range(hits):
                per_position[j] += 1
            slot += hits + 1
        counts.append(SequenceCount(steps, accepted))
    result = walk(head, adapter, items, lookahead)
    assert result.per_sequence == tuple(counts)
    assert result.accepted_per_position == tuple(per_position)
    assert result.censored == censored
    assert result.accepted > 5
    assert result.tau == pytest.approx(1 + result.accepted / result.verify_steps)
    assert result.drafted == lookahead * result.verify_steps


def test_zero_weight_and_fresh_adapter_are_turbo(
    head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence]
) -> None:
    """Weight 0 and an untrained adapter give turbo's acceptance exactly."""
    items = [likely(head, item, None) for item in sequences]
    turbo = walk(head, None, items, 4)
    assert walk(head, adapter, items, 4, weight=0.0) == turbo
    assert walk(head, Adapter(AdapterConfig(), head.config).double(), items, 4) == turbo
    assert walk(head, adapter, items, 4) != turbo


def test_teacher_forced_counts_every_position(head: Eagle3Head, sequences: list[TracedSequence]) -> None:
    """Teacher-forced tau with one draft is one plus the share of positions guessed right."""
    items = [likely(head, item, None) for item in sequences]
    hits = total = 0
    for item in items:
        for slot in range(item.first_query, len(item.token_ids) - 2):
            drafted, _ = draft_from(head, None, item, slot, 1, forced=False)
            hits, total = hits + (drafted[0] == int(item.token_ids[slot + 2])), total + 1
    assert teacher_forced(head, None, items, 1) == pytest.approx(1 + hits / total)


def test_answers_too_short_to_draft(head: Eagle3Head) -> None:
    """A one-token answer has no verify step, and nothing fails."""
    item = TracedSequence(
        torch.tensor([1, 2, 3]), 2, 0, torch.zeros(3, 24).double(), torch.zeros(3, 8).double()
    )
    result = walk(head, None, [item], 4)
    assert (result.verify_steps, result.accepted, result.tau) == (0, 0, 1.0)
