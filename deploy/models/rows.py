"""Generated text packed into training rows that stay on the device, the target's features beside them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adaptive.speculator.sequences import Batch, TracedSequence, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.models.generate import Text
    from deploy.models.llama import Runner


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """R packed rows of S slots, all int32 [R, S].

    Slot t holds x[t] for the target (`source`), x[t+1] for the drafter (`token_ids`), x[t+2] as its label,
    position t, the segment (-1: padding) and the span (which run of drafting slots; -1: none).
    """

    source: Tensor
    token_ids: Tensor
    labels: Tensor
    positions: Tensor
    segment: Tensor
    span: Tensor

    @property
    def fill(self) -> float:
        """Share of slots that hold text."""
        return float((self.segment >= 0).float().mean())

    @property
    def queries(self) -> int:
        """Slots that drafting is trained on."""
        return int((self.span >= 0).sum())


def pack(text: Text, slots: int, device: str, generator: torch.Generator) -> Rows:
    """Pack every sequence of at least two sampled tokens into rows of `slots`, in random row order."""
    usable = text.sampled.sum(1) >= 2
    lengths = torch.where(usable, text.length - 1, 0)
    rows = pack_rows(lengths.tolist(), slots)
    rows = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
    order = torch.tensor([i for row in rows for i in row])
    number = torch.tensor([n for row in rows for n in range(len(row))])
    size = lengths[order]
    first = torch.tensor([len(row) for row in rows]).cumsum(0)
    row_of = torch.bucketize(torch.arange(len(order)), first, right=True)
    ends = size.cumsum(0)
    base = torch.zeros(len(rows), dtype=torch.int64)
    base[1:] = ends[first[:-1] - 1]
    begin = row_of * slots + (ends - size) - base[row_of]  # where each sequence's slot 0 goes
    count = int(ends[-1])
    sequence = order.repeat_interleave(size)
    t = torch.arange(count) - (ends - size).repeat_interleave(size)
    place = begin.repeat_interleave(size) + t
    last = text.tokens.shape[1] - 1

    def put(values: Tensor, fill: int) -> Tensor:
        flat = torch.full((len(rows) * slots,), fill, dtype=torch.int32)
        flat[place] = values.int()
        return flat.view(len(rows), slots).to(device)

    after = (t + 2).clamp(max=last)
    drafting = text.sampled[sequence, t + 1] & text.sampled[sequence, after] & (t + 2 < text.length[sequence])
    previous = torch.roll(drafting, 1)
    previous[0] = False
    starts = drafting & (~previous | (t == 0))
    span = torch.where(drafting, starts.cumsum(0) - 1, -1)
    return Rows(
        source=put(text.tokens[sequence, t], 0),
        token_ids=put(text.tokens[sequence, t + 1], 0),
        labels=put(text.tokens[sequence, after], 0),
        positions=put(t, 0),
        segment=put(number.repeat_interleave(size), -1),
        span=put(span, -1),
    )


class FeatureStore:
    """Features (scaled per dimension) and last hidden states of a shard of rows, bfloat16, on the device."""

    def __init__(
        self, rows: Rows, indices: Tensor, runner: Runner, layers: Sequence[int], scale: Tensor
    ) -> None:
        self.rows, self.indices = rows, indices
        slots, width = rows.source.shape[1], len(scale)
        hidden = width // len(layers)
        device, dtype = rows.source.device, runner.llama.embedding.dtype
        self.features = torch.empty(len(indices), slots, width, device=device, dtype=dtype)
        self.last_hidden = torch.empty(len(indices), slots, hidden, device=device, dtype=dtype)
        step = 64
        for at in range(0, len(indices), step):
            part = indices[max(0, min(at, len(indices) - step)) :][
                :step
            ]  # the last part overlaps: one compiled shape
            where = slice(max(0, min(at, len(indices) - step)), None)
            features, last = target_features(rows, part, runner, layers)
            self.features[where][: len(part)] = features / scale
            self.last_hidden[where][: len(part)] = last

    def batch(self, pick: Tensor) -> Batch:
        """The batch of these rows of the shard; every slot is a query, those outside spans are masked."""
        rows, index = self.rows, self.indices[pick]
        slots = rows.source.shape[1]
        span = rows.span[index].long()
        return Batch(
            token_ids=rows.token_ids[index].long(),
            positions=rows.positions[index].long(),
            segment=rows.segment[index].long(),
            features=self.features[pick],
            query_slot=torch.arange(slots, device=index.device).expand(len(index), -1),
            span=span,
            labels=rows.labels[index].long(),
            teacher_hidden=torch.roll(self.last_hidden[pick], -1, dims=1),
            sequence=span,
            rejected=torch.zeros_like(span, dtype=torch.bool),
        )


def target_features(rows: Rows, part: Tensor, runner: Runner, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Features and last hidden states of some rows."""
    return runner.features(
        rows.source[part].long(), rows.positions[part].long(), rows.segment[part].long(), layers
    )


def traced(text: Text, prompts: Sequence[int], runner: Runner, layers: Sequence[int]) -> list[TracedSequence]:
    """Single-turn sequences with features in float32, for evaluation. `prompts` are the prompt lengths."""
    out = []
    device = runner.llama.embedding.device
    for at in range(0, len(prompts), 16):
        lengths = text.length[at : at + 16].tolist()
        tokens = text.tokens[at : at + 16, : max(lengths)].long().to(device)
        positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
        features, last = runner.features(tokens, positions, torch.zeros_like(tokens), layers)
        for i, length in enumerate(lengths):
            out.append(
                TracedSequence(
                    tokens[i, :length].cpu(), prompts[at + i], 0,
                    features[i, :length].float().clone(), last[i, :length].float().clone(),
                )
            )  # fmt: skip
    return out
