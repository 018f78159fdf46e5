"""Tenants' text as sequences to train and to walk on; the target's features are computed once and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from adaptive.speculator.sequences import TracedSequence
from learners.drafter import Recomputer, load_drafter
from learners.replay import Replay, ReplayError
from tests.bench import text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from learners.drafter import Drafter

LOOKAHEAD: Final = 4


class Material:
    """Sequences of one target's text, by workload, side and number."""

    def __init__(self, target: Path, precision: str = "bfloat16", *, made_with: Path | None = None) -> None:
        """Load the drafter.

        Args:
            target: Model directory whose features and distribution count.
            precision: Of drafter and target.
            made_with: Model directory whose text it is, if another one.
        """
        self.target: Final = target
        self.drafter: Final[Drafter] = load_drafter(target, text.turbo_directory(), precision)
        self._recompute: Final = Recomputer(self.drafter)
        self._text: Final = (made_with or target).name
        folder = text.DIRECTORY.parent / "features" / f"{target.name}-{self._text}-{precision}"
        self._kept: Final = Replay(folder)

    def sequence(self, workload: str, side: str, number: int, item: text.Text) -> TracedSequence | None:
        """One request with its features; None where the answer is too short to draft in."""
        key = f"{workload}/{side}"
        try:
            return self._kept.load(key, number)
        except ReplayError:
            pass
        token_ids = torch.tensor(item.prompt + item.answer)
        if len(item.answer) < 3:
            return None
        features, last_hidden = self._recompute(token_ids)
        sequence = TracedSequence(token_ids, len(item.prompt), 0, features, last_hidden)
        self._kept.save(key, number, sequence)
        return sequence

    def sequences(self, workload: str, side: str, first: int, last: int) -> list[TracedSequence]:
        """Requests `first` to `last` (exclusive) of a workload's side.

        Raises:
            SystemExit: they have not been generated.
        """
        items = text.read(workload, side, self._text)[first:last]
        if not items:
            raise SystemExit(f"only {first} requests of {workload} were generated: raise --requests of text")
        made = [self.sequence(workload, side, first + offset, item) for offset, item in enumerate(items)]
        return [sequence for sequence in made if sequence is not None]


def answer_tokens(sequences: Sequence[TracedSequence]) -> int:
    """Answer tokens of all sequences."""
    return sum(len(item.token_ids) - item.answer_start for item in sequences)
