"""What the survival of a draft token is judged by: features known before the target verifies.

Confidence is the log-odds of the draft distribution's top token. Drafting is greedy, so that is the drafted
token; were drafts sampled, the sampled token's own probability would bias what a decision based on it emits
and must never enter here.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Final

from adaptive.engine.ngram import Source

if TYPE_CHECKING:
    from adaptive.engine.ngram import Candidate

_TEMPERATURE_LIMIT: Final = 2.0


class Judge(enum.StrEnum):
    """One fit: whose tokens it judges, and from where."""

    TURBO = "turbo"
    """A token that turbo drafted, by its own log-odds."""
    ADAPTER = "adapter"
    AHEAD_TURBO = "ahead.turbo"
    """A token that turbo has not drafted yet, by the log-odds of an earlier one."""
    AHEAD_ADAPTER = "ahead.adapter"
    COPY_FIRST = "copy.first"
    """First token of a copied continuation."""
    COPY_LATER = "copy.later"


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A token that the model drafted, the top one of its distribution, and its log-odds."""

    token: int
    log_odds: float


Row = tuple[float, ...]

WIDTHS: Final = {
    Judge.TURBO: 8,
    Judge.ADAPTER: 8,
    Judge.AHEAD_TURBO: 5,
    Judge.AHEAD_ADAPTER: 5,
    Judge.COPY_FIRST: 15,
    Judge.COPY_LATER: 15,
}
"""Features of each fit."""


def drafted(log_odds: float, position: int, temperature: float) -> Row:
    """Features of a token that the model drafted.

    Args:
        log_odds: Of the top token, at this position.
        position: 0 for the first draft token of the step.
        temperature: Of the request's sampling; 0 is greedy.
    """
    warm = min(temperature, _TEMPERATURE_LIMIT)
    later = position > 0
    return (
        1.0,
        log_odds,
        max(log_odds - 1.0, 0.0),
        max(log_odds - 4.0, 0.0),
        float(later),
        log_odds if later else 0.0,
        warm,
        warm * log_odds,
    )


def ahead(log_odds: float, position: int, gap: int, temperature: float) -> Row:
    """Features of a token `gap` positions behind the last drafted one, given that all before it survive.

    Args:
        log_odds: Of the last drafted token.
        position: Of the last drafted token.
        gap: At least 1.
        temperature: Of the request's sampling.
    """
    warm = min(temperature, _TEMPERATURE_LIMIT)
    return (1.0, log_odds / gap, float(gap > 1), 1.0 / (1 + position), warm)


def copied(candidate: Candidate, first: Draft | None, temperature: float) -> list[tuple[Judge, Row]]:
    """Per copied token of a candidate its fit and features (the model's own `first` token is left out).

    What the model thinks of the copy's first token is its confidence where it drafted the same one, and its
    confidence in another where it did not.
    """
    warm = min(temperature, _TEMPERATURE_LIMIT)
    lead = candidate.after_first
    agrees = disagrees = False
    log_odds = 0.0
    if first is not None and not lead:
        agrees = candidate.tokens[0] == first.token
        disagrees = not agrees
        log_odds = first.log_odds
    history = candidate.source is Source.HISTORY
    fixed = (
        float(history),
        float(candidate.source is Source.PREDICTION),
        math.log2(candidate.count),
        1.0 - candidate.agreement,
        float(agrees),
        log_odds if agrees else 0.0,
        log_odds if disagrees else 0.0,
        float(first is None),
        float(lead),
        warm,
    )
    rows: list[tuple[Judge, Row]] = []
    for index, share in enumerate(candidate.shares):
        length = math.log2(1 + candidate.match_length + index)
        own = (1.0, length, length if history else 0.0, length if disagrees else 0.0, 1.0 - share)
        rows.append((Judge.COPY_LATER if index else Judge.COPY_FIRST, own + fixed))
    return rows
