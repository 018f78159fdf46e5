"""Which requests each step of an update trains on, and at what learning rate; pure functions of the plan."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FRESH_SHARE: Final = 0.5
"""Least share of a batch from text that no earlier update has seen, where there is any."""
WARMUP_SHARE: Final = 0.1
FINAL_RATE: Final = 0.1
"""Of the peak, at the end of the cosine decay."""


class _Deck:
    """Requests dealt in random order, reshuffled when all have been dealt."""

    def __init__(self, requests: Sequence[int], generator: random.Random) -> None:
        self._requests: Final = sorted(requests)
        self._generator: Final = generator
        self._left: list[int] = []

    def deal(self) -> int:
        if not self._left:
            self._left = self._requests.copy()
            self._generator.shuffle(self._left)
        return self._left.pop()


def schedule(
    tokens: Mapping[int, int], fresh: Sequence[int], *, token_steps: int, batch_tokens: int, seed: int
) -> list[list[int]]:
    """Deal requests into steps.

    Args:
        tokens: Answer tokens of every training request, by number.
        fresh: Those that no earlier update has trained on; the rest is replay.
        token_steps: Answer tokens to process in all (overshot by at most one batch).
        batch_tokens: Answer tokens of a step (overshot by at most one request).
        seed: Of the dealing.

    Returns:
        Request numbers of each step. At least half of the tokens are fresh where there are both kinds.
    """
    generator = random.Random(seed)  # noqa: S311  # reproducible on purpose, nothing secret
    old = sorted(tokens.keys() - set(fresh))
    decks = (_Deck(fresh, generator), _Deck(old, generator))
    fresh_tokens = sum(tokens[number] for number in fresh)
    share = 1.0 if not old else max(FRESH_SHARE, fresh_tokens / sum(tokens.values())) if fresh else 0.0
    dealt = dealt_fresh = 0
    steps: list[list[int]] = []
    while dealt < token_steps:
        step: list[int] = []
        size = 0
        while size < batch_tokens:
            is_fresh = dealt_fresh <= share * dealt if share not in {0.0, 1.0} else bool(share)
            number = decks[0 if is_fresh else 1].deal()
            step.append(number)
            size += tokens[number]
            dealt += tokens[number]
            dealt_fresh += tokens[number] if is_fresh else 0
        steps.append(step)
    return steps


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Rate of a step (from 0): linear warm-up over a tenth of them, then a cosine to a tenth of the peak."""
    warmup = max(1, int(steps * WARMUP_SHARE))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress)))
