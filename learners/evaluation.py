"""Scores on the hold-out, walked as a server would, in the shape that the gate and the contracts want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from adaptive.contracts import HoldoutScore
from adaptive.speculator.adapter import Adapter, AdapterConfig
from adaptive.speculator.evaluation import walk
from learners.gate import RequestScore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import TracedSequence

_REQUESTS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Scored:
    """One drafter's hold-out score, in all and per request."""

    total: HoldoutScore
    requests: tuple[RequestScore, ...]


def score(
    head: Eagle3Head,
    tensors: Mapping[str, Tensor] | None,
    sequences: Sequence[TracedSequence],
    *,
    lookahead: int,
    weight: float,
    between: Callable[[], None],
) -> Scored:
    """Walk a drafter over the hold-out.

    Args:
        head: Turbo.
        tensors: Of the adapter; None scores turbo.
        sequences: The hold-out.
        lookahead: Drafts per verify step, at least 1.
        weight: On the adapter.
        between: Called between groups of requests; may raise to stop.
    """
    adapter = None
    if tensors is not None:
        adapter = Adapter(AdapterConfig(rank=tensors["q_proj.A"].shape[0]), head.config)
        adapter.load_tensors(tensors)
        adapter.to(head.fc.weight.device)
    steps = accepted = 0
    per_position = [0] * lookahead
    requests: list[RequestScore] = []
    for start in range(0, len(sequences), _REQUESTS_AT_ONCE):
        between()
        result = walk(head, adapter, sequences[start : start + _REQUESTS_AT_ONCE], lookahead, weight)
        steps += result.verify_steps
        accepted += result.accepted
        per_position = [a + b for a, b in zip(per_position, result.accepted_per_position, strict=True)]
        requests += [
            RequestScore(one.verify_steps, one.verify_steps + one.accepted) for one in result.per_sequence
        ]
    total = HoldoutScore(
        tau=1.0 + accepted / max(1, steps),
        acceptance_per_position=[count / max(1, steps) for count in per_position],
        verify_steps=steps,
        requests=len(sequences),
    )
    return Scored(total, tuple(requests))
