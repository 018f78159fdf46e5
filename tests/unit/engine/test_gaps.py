"""Skipped positions, and what is run over them later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptive.engine.gaps import Gaps, Part, Rewrite, is_prefill, passes
from adaptive.engine.prefix import PrefixGuard
from adaptive.engine.skipping import FirstPasses, StepView

LAYERS, HIDDEN = 3, 2


def part(name: str, position: int, *, begin: int = 0, kept: int = 1, **others: Any) -> Part:
    """A decoding part of a step, by default one token of a request that may draft again."""
    return Part(name, 0, position, begin, kept, **({"prefill": False, "speculates": True} | others))


def features(positions: range) -> list[torch.Tensor]:
    """Per layer, rows whose every value is position * 10 + layer."""
    return [
        torch.tensor([[float(position * 10 + layer)] * HIDDEN for position in positions]).reshape(-1, HIDDEN)
        for layer in range(LAYERS)
    ]


def whole(positions: range) -> torch.Tensor:
    """The same, layers side by side."""
    return torch.cat(features(positions), dim=-1)


@pytest.mark.parametrize(
    ("position", "tokens", "drafts", "prefill"),
    [(0, 10, 0, True), (9, 1, 0, True), (10, 1, 0, False), (10, 5, 4, False), (10, 7, 0, True)],
)
def test_known_tokens_are_prefill(position: int, tokens: int, drafts: int, prefill: bool) -> None:
    """Of a prompt of 10, or of a request that was preempted and is computed anew."""
    assert is_prefill(position, tokens, drafts, 10) is prefill


def test_skipped_steps_are_kept_and_closed_whole() -> None:
    """Rows of rejected drafts aside, every position is there once, in order, with its own features."""
    gaps = Gaps(100)
    assert gaps.skip([part("a", 10, kept=2)], features(range(10, 15))) == []
    assert gaps.skip([part("b", 3), part("a", 12, begin=1)], features(range(11, 13))) == []
    (rewrite,) = gaps.close([("a", 7, False), ("other", 1, False)])
    assert (rewrite.row, rewrite.position) == (7, 10)
    assert torch.equal(rewrite.features, whole(range(10, 13)))
    assert len(gaps) == 1
    gaps.forget("b")
    assert len(gaps) == 0


def test_a_full_gap_is_closed_at_once() -> None:
    """Memory is bounded: one pass over all of it costs less than one per step."""
    gaps = Gaps(3)
    for position in (10, 11):
        assert gaps.skip([part("a", position)], features(range(position, position + 1))) == []
    (rewrite,) = gaps.skip([part("a", 12)], features(range(12, 13)))
    assert torch.equal(rewrite.features, whole(range(10, 13)))
    assert gaps.room("a") == 3


def test_prefill_is_never_left_out() -> None:
    """Prompts, and what a preempted request computes anew, go through the drafter in the same step."""
    gaps = Gaps(100)
    gaps.skip([part("a", 10)], features(range(10, 11)))
    (rewrite,) = gaps.skip([part("a", 0, kept=5, prefill=True)], features(range(5)))
    assert (rewrite.position, len(rewrite.features), len(gaps)) == (0, 5, 0)
    gaps.skip([part("a", 5)], features(range(5, 6)))
    assert gaps.close([("a", 0, True)]) == []
    assert len(gaps) == 0


def test_requests_that_never_draft_again_keep_nothing() -> None:
    """Their gap is never read."""
    gaps = Gaps(100)
    assert gaps.skip([part("a", 10, speculates=False)], features(range(10, 11))) == []
    assert len(gaps) == 0


@pytest.mark.parametrize(
    ("requests", "row_bytes", "limit"), [(16, 3456, 128), (256, 24576, 10), (1024, 1 << 20, 8)]
)
def test_gaps_are_sized_to_the_engine(requests: int, row_bytes: int, limit: int) -> None:
    """64 MiB for all requests, within 8 to 128 positions each."""
    assert Gaps.sized(requests, row_bytes).room("a") == limit


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    starts=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    room=st.integers(1, 40),
)
def test_passes_cover_every_position_once_and_fit(lengths: list[int], starts: list[int], room: int) -> None:
    """Packed, split where needed, each with the token after it, its slot and its context length."""
    rewrites = [
        Rewrite(row, start, whole(range(start, start + length)))
        for row, (length, start) in enumerate(zip(lengths, starts, strict=False))
    ]
    block, table = 16, torch.arange(6 * 8).reshape(6, 8)
    seen: dict[int, list[int]] = {row: [] for row in range(len(lengths))}
    for one in passes(
        rewrites, lambda row, first, count: [row * 1000 + first + 1 + i for i in range(count)], room
    ):
        counts = torch.diff(one.query_start).tolist()
        assert sum(counts) == len(one.input_ids) == len(one.positions) == len(one.features) <= room
        owners = [row for row, count in zip(one.rows.tolist(), counts, strict=True) for _ in range(count)]
        positions = one.positions.tolist()
        assert one.input_ids.tolist() == [
            row * 1000 + position + 1 for row, position in zip(owners, positions, strict=True)
        ]
        assert one.features[:, 0].tolist() == [position * 10 for position in positions]
        assert one.slot_mapping(table, block).tolist() == [
            int(table[row, position // block]) * block + position % block
            for row, position in zip(owners, positions, strict=True)
        ]
        ends = one.query_start[1:].tolist()
        assert one.lengths.tolist() == [positions[end - 1] + 1 for end in ends]
        for row, position in zip(owners, positions, strict=True):
            seen[row].append(position)
    assert seen == {row: list(range(starts[row], starts[row] + length)) for row, length in enumerate(lengths)}


class Proposer:
    """Keeps the tokens that follow each rewritten position."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, list[int]]] = []

    def rewrite(self, rewrites: list[Rewrite], tokens_after: Any, _metadata: Any) -> None:
        """Ask for the tokens as the real one does."""
        self.runs += [
            (one.row, one.position, tokens_after(one.row, one.position, len(one.features)))
            for one in rewrites
        ]


def view(position: int, tokens: int, drafts: int, *, prompt: int = 6) -> StepView:
    """A step of one request whose known token at position p is 100 + p; drafts follow as 999."""
    ids = np.array([[100 + number for number in range(20)]])
    ids[0, position + tokens - drafts : position + tokens] = 999
    return StepView(["a"], {"a": position}, {"a": tokens}, {"a": [999] * drafts}, [prompt], [True], ids)


def test_the_tokens_after_a_gap_are_those_that_were_emitted() -> None:
    """Accepted drafts and the bonus token of skipped steps, not the drafts that were rejected."""
    passes_, proposer = FirstPasses(Gaps(4)), Proposer()
    metadata: Any = None
    fake: Any = proposer
    # Position 8: one of two drafts accepted (109), then the target's own 110: positions 8 and 9 are final.
    passes_.skip(view(8, 3, 2), [[109, 110, -1]], features(range(8, 11)), fake, metadata)
    passes_.skip(view(10, 1, 0), [[111]], features(range(10, 11)), fake, metadata)
    assert proposer.runs == []
    passes_.resume(view(11, 1, 0), fake, metadata)
    assert proposer.runs == [(0, 8, [109, 110, 111])]
    # Closed for its length in the very step: the last tokens are this step's.
    for position in (11, 12, 13):
        passes_.skip(
            view(position, 1, 0), [[101 + position]], features(range(position, position + 1)), fake, metadata
        )
    passes_.skip(view(14, 3, 2), [[115, 777]], features(range(14, 17)), fake, metadata)
    assert proposer.runs[1:] == [(0, 11, [112, 113, 114, 115, 777])]


@pytest.mark.parametrize(
    ("prompt", "sampled", "expected"), [(6, [777], [103, 104, 105, 777]), (9, [], [103, 104, 105, 106])]
)
def test_the_tokens_after_a_prefill(prompt: int, sampled: list[int], expected: list[int]) -> None:
    """The prompt's own, then what was sampled, or the prompt's next where the chunk ends inside it."""
    proposer = Proposer()
    fake: Any = proposer
    FirstPasses(Gaps(4)).skip(view(2, 4, 0, prompt=prompt), [sampled], features(range(2, 6)), fake, fake)
    assert proposer.runs == [(0, 2, expected)]


class Scheduled:
    """What the guard sees of a scheduler's step of one request."""

    def __init__(self, prompt: int) -> None:
        self.guard = PrefixGuard()
        self.request: Any = SimpleNamespace(request_id="a", num_prompt_tokens=prompt, num_computed_tokens=0)

    def step(self, tokens: int, *, off: bool, drafts: int = 0) -> int:
        """Schedule a step; how many tokens it may cache."""
        self.guard.drafter_off = off
        computed = self.request.num_computed_tokens
        cacheable = self.guard.cacheable(self.request, computed + tokens)
        output: Any = SimpleNamespace(
            scheduled_cached_reqs=SimpleNamespace(req_ids=["a"], num_computed_tokens=[computed]),
            scheduled_new_reqs=[],
            num_scheduled_tokens={"a": tokens},
            scheduled_spec_decode_tokens={"a": [0] * drafts},
        )
        self.guard.step(output, {"a": self.request})
        self.request.num_computed_tokens += tokens
        return cacheable


def test_nothing_beyond_the_start_of_an_open_gap_is_cached() -> None:
    """Prompts at once, as ever; decoded positions not while the drafter is off; all of them afterwards."""
    scheduled = Scheduled(prompt=10)
    assert scheduled.step(10, off=True) == 10
    assert scheduled.step(1, off=False) == 11
    assert [scheduled.step(1, off=True) for _ in range(3)] == [11, 11, 11]
    # The step that resumes closes the gap, but only when it runs: cacheable with the step after it.
    assert scheduled.step(1, off=False) == 11
    assert scheduled.step(1, off=False) == 16
    assert len(scheduled.guard) == 0


def test_a_preempted_request_closes_its_gap_by_computing_it_anew() -> None:
    """Prefill runs the drafter whatever the load floor says."""
    scheduled = Scheduled(prompt=10)
    scheduled.step(10, off=False)
    scheduled.step(1, off=True)
    scheduled.request.num_computed_tokens = 0
    scheduled.step(11, off=True)
    assert len(scheduled.guard) == 0
    assert scheduled.step(1, off=False) == 12


def test_a_request_that_never_speculates_caches_its_prompt_alone() -> None:
    """Whether its steps ran the drafter depends on its neighbours."""
    scheduled = Scheduled(prompt=10)
    scheduled.guard.admit("a", speculates=False)
    assert [scheduled.step(tokens, off=False) for tokens in (10, 1, 1)] == [10, 10, 10]
    scheduled.guard.forget("a")
    assert len(scheduled.guard) == 0


def test_the_guard_stands_between_manager_and_coordinator() -> None:
    """Every way of caching goes through the cap."""
    cached: list[int] = []
    coordinator: Any = SimpleNamespace(cache_blocks=lambda _request, tokens: cached.append(tokens))
    guard = PrefixGuard()
    guard.install(coordinator)
    guard.admit("a", speculates=False)
    coordinator.cache_blocks(SimpleNamespace(request_id="a", num_prompt_tokens=4, num_computed_tokens=0), 9)
    coordinator.cache_blocks(SimpleNamespace(request_id="b", num_prompt_tokens=4, num_computed_tokens=0), 9)
    assert cached == [4, 9]
