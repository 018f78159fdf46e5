"""Offline acceptance of a drafter on known answers, counted as a server would."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from adaptive.speculator.sequences import batches
from adaptive.speculator.unroll import unroll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import Batch, TracedSequence


@dataclasses.dataclass(frozen=True)
class SequenceCount:
    """Verify steps of one request whose outcome is known, and the drafts they accepted."""

    verify_steps: int
    accepted: int


@dataclasses.dataclass(frozen=True)
class WalkResult:
    """Acceptance over a set of requests.

    accepted_per_position[j] counts verify steps that accepted more than j drafts. `censored` verify steps
    (at most one per request, the last) are counted nowhere else: every draft up to the end of the known
    answer matched, so how many a server would have accepted is not known. A server makes verify_steps +
    censored steps.
    """

    verify_steps: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    censored: int
    per_sequence: tuple[SequenceCount, ...]

    @property
    def tau(self) -> float:
        """Acceptance length 1 + accepted / verify steps."""
        return 1.0 + self.accepted / max(1, self.verify_steps)

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Share of verify steps that accepted position 1, 2, ... (joint, not conditional)."""
        return tuple(count / max(1, self.verify_steps) for count in self.accepted_per_position)


def walk(
    head: Eagle3Head,
    adapter: Adapter | None,
    sequences: Sequence[TracedSequence],
    lookahead: int,
    weight: float = 1.0,
) -> WalkResult:
    """Greedy chain drafting from each verified position along the true answer, as a server's verify steps.

    The first verify step drafts after the prefill's token; each accepts the longest matching prefix and
    goes on after the target's own next token. Exact for chain drafting: while drafts are accepted they
    equal the true tokens.
    """
    runs = accepted_runs(head, adapter, sequences, lookahead, weight)
    per_position = [0] * lookahead
    censored = 0
    counts = []
    for run in runs:
        steps = accepted = at = 0
        while at < len(run):
            hits = run[at]
            if hits < lookahead and at + hits >= len(run):
                censored += 1
                break
            steps += 1
            accepted += hits
            for j in range(hits):
                per_position[j] += 1
            at += hits + 1
        counts.append(SequenceCount(steps, accepted))
    total = sum(count.verify_steps for count in counts)
    return WalkResult(
        verify_steps=total,
        drafted=total * lookahead,
        accepted=sum(count.accepted for count in counts),
        accepted_per_position=tuple(per_position),
        censored=censored,
        per_sequence=tuple(counts),
    )


def teacher_forced(
    head: Eagle3Head,
    adapter: Adapter | None,
    sequences: Sequence[TracedSequence],
    lookahead: int,
    weight: float = 1.0,
) -> float:
    """Tau over every answer position instead of the walked ones (higher: easy stretches count in full)."""
    hits = steps = 0
    for run in accepted_runs(head, adapter, sequences, lookahead, weight):
        complete = [n for at, n in enumerate(run) if n == lookahead or at + n < len(run)]
        hits, steps = hits + sum(complete), steps + len(complete)
    return 1.0 + hits / max(1, steps)


@torch.inference_mode()
def accepted_runs(
    head: Eagle3Head,
    adapter: Adapter | None,
    sequences: Sequence[TracedSequence],
    lookahead: int,
    weight: float = 1.0,
) -> list[list[int]]:
    """Per sequence and query slot, how many drafts of a verify step that begins there match the known answer.

    Entry i of a sequence is the slot first_query + i; fewer than `lookahead` tokens are known near the end.
    """
    matches: list[list[list[bool]]] = [[] for _ in sequences]
    device, dtype = head.fc.weight.device, head.fc.weight.dtype
    for packed in batches(sequences):
        _collect(
            matches,
            packed,
            torch.stack(_passes(head, adapter, packed.to(device, dtype), lookahead, weight)).cpu(),
        )
    runs = []
    for table in matches:  # table[i][j]: pass j+1 at slot i predicts the true token
        run = []
        for i in range(len(table)):
            n = 0
            while n < lookahead and i + n < len(table) and table[i + n][n]:
                n += 1
            run.append(n)
        runs.append(run)
    return runs


def _passes(
    head: Eagle3Head, adapter: Adapter | None, batch: Batch, lookahead: int, weight: float
) -> list[Tensor]:
    """Per pass bool [B, Q]: the drafted token is the true one (and the pass reachable)."""
    ids = head.draft_token_ids
    out = []
    for hidden, reachable in unroll(head, adapter, batch, lookahead, weight):
        drafted = torch.cat([ids[head.lm_head(row).argmax(-1)][None] for row in hidden])
        out.append((drafted == batch.labels) & reachable)
    return out


def _collect(matches: list[list[list[bool]]], batch: Batch, table: Tensor) -> None:
    """Append the columns of table [lookahead, B, Q] to their sequences, in slot order."""
    sequence = batch.sequence.cpu().tolist()
    columns = table.permute(1, 2, 0).tolist()
    for row_sequence, row in zip(sequence, columns, strict=True):
        for index, column in zip(row_sequence, row, strict=True):
            if index >= 0:
                matches[index].append(column)
