"""Traced sequences and their packing into dense training rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_SLOTS: Final = 512
"""Short sequences share a block of attention up to this size."""


class Block(NamedTuple):
    """Queries of a row and the slots they can see, each from first to last (exclusive)."""

    first_query: int
    last_query: int
    first_slot: int
    last_slot: int


@dataclasses.dataclass(frozen=True, eq=False)
class TracedSequence:
    """One request's tokens and what the target computed over them.

    Row t of the tensors describes position feature_start + t; the target's distribution of token t+1 is
    lm_head(last_hidden of position t).

    Attributes:
        token_ids: int64 [T], prompt and answer.
        answer_start: index of the first answer token.
        feature_start: first position that has features (later than 0 after a prefix-cache hit).
        features: [T - feature_start, L*H], the residual stream entering the feature layers, in layer order.
        last_hidden: [T - feature_start, H], after the target's final norm.
        rejected: bool [T], tokens that stand where a draft was rejected while serving; None: not known.
    """

    token_ids: Tensor
    answer_start: int
    feature_start: int
    features: Tensor
    last_hidden: Tensor
    rejected: Tensor | None = None

    def __post_init__(self) -> None:
        rows = len(self.token_ids) - self.feature_start
        for name in ("features", "last_hidden"):
            if len(getattr(self, name)) != rows:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} rows, token_ids and feature_start ask for {rows}"
                )
        if self.rejected is not None and len(self.rejected) != len(self.token_ids):
            raise ValueError(f"rejected has {len(self.rejected)} entries for {len(self.token_ids)} tokens")
        if not 1 <= self.answer_start <= len(self.token_ids):
            raise ValueError(f"answer_start {self.answer_start} is outside the {len(self.token_ids)} tokens")

    @property
    def first_query(self) -> int:
        """First slot that drafts: the one before the first answer token, or the first that has features."""
        return max(self.answer_start - 1, self.feature_start)

    @property
    def queries(self) -> int:
        """Number of slots whose drafted token and the target's distribution of it are known."""
        return max(0, len(self.token_ids) - 2 - self.first_query)

    @property
    def slots(self) -> int:
        """Number of slots the drafter's attention sees."""
        return max(0, len(self.token_ids) - 2 - self.feature_start)


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """B packed rows of S slots, of which Q per row are queries (places where the drafter drafts).

    Slot t of a sequence x holds token x[t+1] and the features of position t, and drafts x[t+2]. Keys and
    values are computed for every slot, everything else for queries only, so long prompts cost little.

    Attributes:
        token_ids: int64 [B, S], the slot's token x[t+1].
        positions: int64 [B, S], t.
        segment: int64 [B, S], which sequence of the row a slot belongs to; -1 is padding.
        features: [B, S, L*H].
        query_slot: int64 [B, Q], the slot of each query; queries of one span are consecutive slots.
        span: int64 [B, Q], unique per run of consecutive queries in a row; -1 is padding.
        labels: int64 [B, Q], the true token x[t+2].
        teacher_hidden: [B, Q, H], the target's last hidden state of position t+1.
        sequence: int64 [B, Q], index of the query's sequence in the packed list; -1 is padding.
        rejected: bool [B, Q], a draft of this token was rejected while serving.
        blocks: where there is one row, its parts that do not see each other; None: every query looks at the
            whole row.
    """

    token_ids: Tensor
    positions: Tensor
    segment: Tensor
    features: Tensor
    query_slot: Tensor
    span: Tensor
    labels: Tensor
    teacher_hidden: Tensor
    sequence: Tensor
    rejected: Tensor
    blocks: tuple[Block, ...] | None = None

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Batch:
        """Move every tensor; floating ones to `dtype`."""
        moved: dict[str, Any] = {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return dataclasses.replace(self, **moved)

    @property
    def query_count(self) -> int:
        """Queries that are not padding."""
        return int((self.span >= 0).sum())

    @property
    def padding(self) -> float:
        """Share of slots, or of queries where that is more, that are padding."""
        parts = (self.segment, self.span)
        return max(float((part < 0).sum()) / max(1, part.numel()) for part in parts)


def pack_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit-decreasing packing: indices of `lengths`, grouped into rows.

    A row's sum is at most the capacity, or it is one longer sequence. Zero lengths are left out. Runs in
    O(n + capacity * distinct rooms).
    """
    rows: list[list[int]] = []
    open_rows: dict[int, list[int]] = {}  # free room -> rows that have it
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        if length <= 0:
            break
        fitting = [room for room, members in open_rows.items() if members and room >= length]
        if fitting:
            room = min(fitting)
            row = open_rows[room].pop()
        else:
            room, row = max(capacity, length), len(rows)
            rows.append([])
        rows[row].append(index)
        open_rows.setdefault(room - length, []).append(row)
    return rows


def collate(sequences: Sequence[TracedSequence], rows: Sequence[Sequence[int]]) -> Batch:
    """Build a batch in which row b holds the sequences rows[b], padded to the longest row."""
    slots = max(sum(sequences[i].slots for i in row) for row in rows)
    queries = max(1, *(sum(sequences[i].queries for i in row) for row in rows))
    first = sequences[rows[0][0]]
    ints = {
        "token_ids": (slots, 0),
        "positions": (slots, 0),
        "segment": (slots, -1),
        "query_slot": (queries, 0),
        "span": (queries, -1),
        "labels": (queries, 0),
        "sequence": (queries, -1),
    }
    out: dict[str, Any] = {
        name: torch.full((len(rows), width), fill, dtype=torch.int64) for name, (width, fill) in ints.items()
    }
    rejected = torch.zeros(len(rows), queries, dtype=torch.bool)
    features = first.features.new_zeros(len(rows), slots, first.features.shape[-1])
    teacher = first.last_hidden.new_zeros(len(rows), queries, first.last_hidden.shape[-1])
    for b, row in enumerate(rows):
        s = q = 0
        for number, index in enumerate(row):
            item = sequences[index]
            n, m, start, lead = (
                item.slots,
                item.queries,
                item.feature_start,
                item.first_query - item.feature_start,
            )
            out["token_ids"][b, s : s + n] = item.token_ids[start + 1 : start + 1 + n]
            out["positions"][b, s : s + n] = torch.arange(start, start + n)
            out["segment"][b, s : s + n] = number
            features[b, s : s + n] = item.features[:n]
            out["query_slot"][b, q : q + m] = torch.arange(s + lead, s + lead + m)
            out["span"][b, q : q + m] = number
            out["sequence"][b, q : q + m] = index
            out["labels"][b, q : q + m] = item.token_ids[start + lead + 2 : start + lead + 2 + m]
            if item.rejected is not None:
                rejected[b, q : q + m] = item.rejected[start + lead + 2 : start + lead + 2 + m]
            teacher[b, q : q + m] = item.last_hidden[lead + 1 : lead + 1 + m]
            s, q = s + n, q + m
    return Batch(features=features, teacher_hidden=teacher, rejected=rejected, **out)


def pack_step(sequences: Sequence[TracedSequence]) -> Batch:
    """All sequences that can be trained on in one row, without padding, cut into blocks for attention.

    Raises:
        ValueError: no sequence has a query.
    """
    order = [index for index, item in enumerate(sequences) if item.queries]
    if not order:
        raise ValueError("no sequence has a position to draft at")
    blocks: list[Block] = []
    slots = queries = 0
    for index in order:
        item = sequences[index]
        last = blocks[-1] if blocks else None
        if last is not None and slots + item.slots - last.first_slot <= BLOCK_SLOTS:
            blocks[-1] = last._replace(last_query=queries + item.queries, last_slot=slots + item.slots)
        else:
            blocks.append(Block(queries, queries + item.queries, slots, slots + item.slots))
        slots, queries = slots + item.slots, queries + item.queries
    return dataclasses.replace(collate(sequences, [order]), blocks=tuple(blocks))


def batches(
    sequences: Sequence[TracedSequence],
    row_slots: int = 512,
    rows_per_batch: int = 8,
    generator: torch.Generator | None = None,
) -> list[Batch]:
    """Pack sequences into rows of `row_slots` and batches of `rows_per_batch`; a generator shuffles rows."""
    lengths = [item.slots if item.queries else 0 for item in sequences]
    rows = pack_rows(lengths, row_slots)
    order = torch.randperm(len(rows), generator=generator).tolist() if generator else range(len(rows))
    shuffled = [rows[i] for i in order]
    groups = [shuffled[i : i + rows_per_batch] for i in range(0, len(shuffled), rows_per_batch)]
    return [collate(sequences, group) for group in groups]
