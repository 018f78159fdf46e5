"""Turbo, what serves and the challenger on the same hold-out, and the gate's verdict on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from learners.evaluation import score
from learners.gate import decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import TracedSequence
    from learners.evaluation import Scored
    from learners.gate import Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """Scores of everything that could serve, and whether the challenger may."""

    turbo: Scored
    champion: Scored | None
    challenger: Scored
    verdict: Verdict


def judge(
    head: Eagle3Head,
    challenger: Mapping[str, Tensor],
    champion: Mapping[str, Tensor] | None,
    sequences: Sequence[TracedSequence],
    *,
    champion_weight: float,
    lookahead: int,
    fresh: float = 1.0,
    between: Callable[[], None],
) -> Judgement:
    """Score the hold-out and decide.

    Args:
        head: Turbo.
        challenger: Tensors of the adapter to judge.
        champion: Tensors of the adapter that serves; None: turbo serves.
        sequences: The hold-out.
        champion_weight: On the champion's delta, as it serves.
        lookahead: Drafts per verify step.
        fresh: Share of the hold-out that no earlier challenger was judged by.
        between: Called between groups of requests; may raise to stop.
    """
    turbo = score(head, None, sequences, lookahead=lookahead, weight=1.0, between=between)
    serving = None
    if champion is not None:
        serving = score(
            head, champion, sequences, lookahead=lookahead, weight=champion_weight, between=between
        )
    new = score(head, challenger, sequences, lookahead=lookahead, weight=1.0, between=between)
    verdict = decide(
        turbo=turbo.requests,
        champion=serving.requests if serving else None,
        challenger=new.requests,
        fresh=fresh,
    )
    return Judgement(turbo, serving, new, verdict)
