"""Positions whose drafter keys and values were skipped, and how they are made good.

A step that asks for no model drafts may leave out the drafter's first pass, which writes the drafter's keys
and values of the step's positions. What that pass would have read (the target's feature rows) is kept per
request, and the pass is run over all of the gap at once before the request drafts again, or when the gap has
grown to its limit. Prefilled rows are never left out, and requests that stay without speculation until they
end keep nothing. Blocks that reach into a gap stay out of the prefix cache (prefix.py).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_FEATURE_BYTES: Final = 64 << 20
"""Most bytes that the gaps of all requests of an engine may hold."""
_MOST_ROWS: Final = 128
_FEWEST_ROWS: Final = 8


def is_prefill(position: int, tokens: int, drafts: int, prompt_length: int) -> bool:
    """Whether a step computes known tokens: of the prompt, or of a request that was preempted.

    Scheduler and runner must agree on it without talking, so both ask this function.

    Args:
        position: of the first token the step computes for the request.
        tokens: computed in this step, drafts included.
        drafts: of these, drafts to verify.
        prompt_length: of the request.
    """
    return position < prompt_length or tokens - drafts > 1


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One request's part of a step that leaves out the drafter's first pass."""

    request_id: str
    row: int
    """In the batch."""
    position: int
    """Of its first token."""
    begin: int
    """Index of that token in the flat batch."""
    kept: int
    """Tokens that are final: all but the rejected drafts."""
    prefill: bool
    speculates: bool
    """Whether the request may draft again before it ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """Consecutive positions of one request that the drafter's first pass must run over."""

    row: int
    position: int
    features: torch.Tensor
    """[positions, layers * hidden], the target's auxiliary hidden states."""


@dataclasses.dataclass(slots=True)
class _Gap:
    position: int
    features: list[torch.Tensor]
    rows: int


class Gaps:
    """The open gaps of one engine's requests."""

    def __init__(self, limit: int) -> None:
        """Keep at most `limit` (1 or more) positions per request."""
        self._limit = limit
        self._gaps: dict[str, _Gap] = {}

    @classmethod
    def sized(cls, max_requests: int, row_bytes: int) -> Gaps:
        """Gaps of an engine with that many requests at once and feature rows of that size."""
        rows = _FEATURE_BYTES // (max(max_requests, 1) * max(row_bytes, 1))
        return cls(min(max(rows, _FEWEST_ROWS), _MOST_ROWS))

    def __len__(self) -> int:
        return len(self._gaps)

    def skip(self, parts: Sequence[Part], auxiliary: Sequence[torch.Tensor]) -> list[Rewrite]:
        """Note a step without a first pass; what is returned must be rewritten now.

        Args:
            parts: every request of the step.
            auxiliary: per feature layer [tokens, hidden], of the flat batch.
        """
        now: list[Rewrite] = []
        held: list[Part] = []
        for part in parts:
            if part.prefill:
                # Everything from here on is computed anew, a gap of before a preemption included.
                self._gaps.pop(part.request_id, None)
                if part.kept:
                    now.append(Rewrite(part.row, part.position, _rows(auxiliary, part)))
            elif part.speculates and part.kept:
                held.append(part)
        if not held:
            return now
        # One copy for the batch: indexing request by request costs more than the rest of a skipped step.
        index = torch.cat([torch.arange(part.begin, part.begin + part.kept) for part in held])
        features = torch.cat([layer.index_select(0, index.to(layer.device)) for layer in auxiliary], dim=-1)
        first = 0
        for part in held:
            gap = self._gaps.setdefault(part.request_id, _Gap(part.position, [], 0))
            assert gap.position + gap.rows == part.position, "a gap must end where the step begins"
            gap.features.append(features[first : first + part.kept])
            gap.rows += part.kept
            first += part.kept
            if gap.rows >= self._limit:
                now.append(self._close(part.request_id, part.row))
        return now

    def close(self, rows: Iterable[tuple[str, int, bool]]) -> list[Rewrite]:
        """Take the gaps that must be rewritten before a step's first pass.

        Args:
            rows: request id, row in the batch and whether the step prefills it (and so closes its gap).
        """
        rewrites = []
        for request_id, row, prefill in rows:
            if prefill:
                self._gaps.pop(request_id, None)
            elif request_id in self._gaps:
                rewrites.append(self._close(request_id, row))
        return rewrites

    def room(self, request_id: str) -> int:
        """Positions that a request's gap may still grow by."""
        gap = self._gaps.get(request_id)
        return self._limit - (gap.rows if gap is not None else 0)

    def forget(self, request_id: str) -> None:
        """The request ended, or never drafts again."""
        self._gaps.pop(request_id, None)

    def _close(self, request_id: str, row: int) -> Rewrite:
        gap = self._gaps.pop(request_id)
        return Rewrite(row, gap.position, torch.cat(gap.features))


def _rows(auxiliary: Sequence[torch.Tensor], part: Part) -> torch.Tensor:
    rows = slice(part.begin, part.begin + part.kept)
    return torch.cat([layer[rows] for layer in auxiliary], dim=-1)


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """Inputs of one drafter pass over rewrites, at most as many tokens as the drafter's buffers hold."""

    rows: torch.Tensor
    """int64 [requests], rows of the batch."""
    query_start: torch.Tensor
    """int32 [requests + 1], cumulative positions."""
    lengths: torch.Tensor
    """int32 [requests], context length after the pass."""
    input_ids: torch.Tensor
    """int32 [tokens], the token after each position."""
    positions: torch.Tensor
    """int64 [tokens]."""
    features: torch.Tensor
    """[tokens, layers * hidden]."""

    def slot_mapping(self, block_table: torch.Tensor, block_size: int) -> torch.Tensor:
        """int64 [tokens]: where in the drafter's KV cache each position lives.

        Args:
            block_table: [batch, blocks], of the whole batch.
            block_size: tokens per block.
        """
        counts = torch.diff(self.query_start).long()
        owners = torch.repeat_interleave(self.rows, counts).to(block_table.device)
        positions = self.positions.to(block_table.device)
        blocks = block_table[owners, positions // block_size].long()
        return blocks * block_size + positions % block_size


def passes(
    rewrites: Sequence[Rewrite], tokens_after: Callable[[int, int, int], Sequence[int]], room: int
) -> Iterable[Pass]:
    """Pack rewrites into passes of at most `room` tokens; a long one is split, in order.

    Args:
        rewrites: what to run over.
        tokens_after: (row, position, count) to the ids of the tokens at position + 1 and on.
        room: tokens of a pass.
    """
    batch: list[Rewrite] = []
    used = 0
    for rewrite in rewrites:
        done = 0
        count = rewrite.features.shape[0]
        while done < count:
            take = min(count - done, room - used)
            batch.append(Rewrite(rewrite.row, rewrite.position + done, rewrite.features[done : done + take]))
            done += take
            used += take
            if used == room:
                yield _pack(batch, tokens_after)
                batch, used = [], 0
    if batch:
        yield _pack(batch, tokens_after)


def _pack(batch: Sequence[Rewrite], tokens_after: Callable[[int, int, int], Sequence[int]]) -> Pass:
    counts = [rewrite.features.shape[0] for rewrite in batch]
    ids: list[int] = []
    positions: list[int] = []
    for rewrite, count in zip(batch, counts, strict=True):
        ids += tokens_after(rewrite.row, rewrite.position, count)
        positions += range(rewrite.position, rewrite.position + count)
    return Pass(
        rows=torch.tensor([rewrite.row for rewrite in batch], dtype=torch.int64),
        query_start=torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        lengths=torch.tensor(
            [rewrite.position + count for rewrite, count in zip(batch, counts, strict=True)],
            dtype=torch.int32,
        ),
        input_ids=torch.tensor(ids, dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int64),
        features=torch.cat([rewrite.features for rewrite in batch]),
    )
