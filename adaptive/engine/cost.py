"""What a step costs on this engine: profiled at warm-up, corrected by every measured step.

Seconds of a target step over `n` scheduled tokens are a piecewise linear curve over fixed knots, plus a term
for attention, times a scale that follows the machine's speed of the moment. Curve and scale are corrected by
normalised least mean squares on the residual (Widrow and Hoff), clipped so that one slow step moves little.
"""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

KNOTS: Final = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    *(1024, 2048, 4096, 8192),
)
_SCALE_RATE: Final = 0.05
_KNOT_RATE: Final = 0.02
_PAIR_RATE: Final = 0.1
_CLIP: Final = math.log(1.5)
"""Most that one step is believed to be off, as a log ratio."""
_OUTLIER: Final = 4.0
"""A step slower than predicted by this factor is ignored, unless it is not alone."""
_OUTLIERS_IN_A_ROW: Final = 4
_GAP_RATE: Final = 0.05


class Curve:
    """Seconds over a count, piecewise linear and never falling."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """Fit the knots to measured points.

        Args:
            points: count -> seconds, at least one; beyond the last the slope of the last two goes on.
        """
        xs = sorted(points)
        ys = np.maximum.accumulate([points[x] for x in xs])
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) if len(xs) > 1 else ys[-1] / xs[-1] * 0.5
        self._values: list[float] = [
            float(np.interp(knot, xs, ys) + max(knot - xs[-1], 0) * slope) for knot in KNOTS
        ]

    def __call__(self, count: float) -> float:
        """Seconds at `count`; zero at zero."""
        if count <= 0:
            return 0.0
        left, share = _place(count)
        return (1 - share) * self._values[left] + share * self._values[left + 1]

    def over(self, first: int, last: int) -> NDArray[np.float64]:
        """Seconds at first, first + 1, ... last."""
        counts = np.arange(first, last + 1)
        inside = np.interp(counts, KNOTS, self._values)
        slope = (self._values[-1] - self._values[-2]) / (KNOTS[-1] - KNOTS[-2])
        return np.where(counts > 0, inside + np.maximum(counts - KNOTS[-1], 0) * slope, 0.0)

    def correct(self, count: float, ratio: float) -> None:
        """Move the knots beside `count` towards `ratio` times what they say."""
        if count <= 0:
            return
        left, share = _place(count)
        share = min(max(share, 0.0), 1.0)
        weights = (1 - share, share)
        step = _KNOT_RATE * self(count) * (ratio - 1) / sum(weight * weight for weight in weights)
        for offset, weight in enumerate(weights):
            self._values[left + offset] = max(self._values[left + offset] + step * weight, 1e-9)
        # A curve that falls would call more tokens cheaper than fewer.
        for knot in range(left + 1, len(KNOTS)):
            self._values[knot] = max(self._values[knot], self._values[knot - 1])
        for knot in range(left - 1, -1, -1):
            self._values[knot] = min(self._values[knot], self._values[knot + 1])

    def table(self) -> dict[int, float]:
        """Knots up to 256 and their seconds."""
        return {knot: value for knot, value in zip(KNOTS, self._values, strict=True) if knot <= 256}


def _place(count: float) -> tuple[int, float]:
    """The knot at or below `count` (the last but one beyond the end) and how far it is to the next."""
    left = min(max(bisect.bisect_right(KNOTS, count) - 1, 0), len(KNOTS) - 2)
    return left, (count - KNOTS[left]) / (KNOTS[left + 1] - KNOTS[left])


class CostModel:
    """Predicts the seconds of target steps and drafter passes of one engine."""

    def __init__(
        self,
        target: Mapping[int, float],
        first_pass: Mapping[int, float],
        next_pass: Mapping[int, float],
        seconds_per_pair: float,
    ) -> None:
        """Start from a profile.

        Args:
            target: scheduled tokens -> seconds of forward, logits and sampling.
            first_pass: scheduled tokens -> seconds of the drafter's first pass.
            next_pass: batch size -> seconds of each pass after it.
            seconds_per_pair: of attention, per query token and token of its context.
        """
        self._target = Curve(target)
        self._first = Curve(first_pass)
        self._next = Curve(next_pass)
        self._per_pair = seconds_per_pair
        self._pair_range = (seconds_per_pair / 8, seconds_per_pair * 8)
        self._scale = 1.0
        self._gap = 0.0
        self._outliers = 0
        self.observed = 0
        """Steps that corrected the model."""

    def target_seconds(self, tokens: float, pairs: float = 0.0) -> float:
        """Of a step over `tokens` scheduled tokens that attend to `pairs` (query, context) pairs in all."""
        return self._scale * (self._target(tokens) + self._per_pair * pairs) + self._gap

    def target_over(self, first: int, last: int) -> NDArray[np.float64]:
        """Of steps over first, ... last tokens, attention left out."""
        return self._scale * self._target.over(first, last) + self._gap

    def token_seconds(self, context: float) -> float:
        """Of attention, for one more token with that context."""
        return self._scale * self._per_pair * context

    def first_pass_seconds(self, tokens: float) -> float:
        """Of the drafter's first pass."""
        return self._scale * self._first(tokens)

    def next_pass_seconds(self, rows: float) -> float:
        """Of one later pass."""
        return self._scale * self._next(rows)

    def observe_target(self, tokens: int, pairs: float, seconds: float) -> None:
        """Correct the target's curve by a measured step (without the time between steps)."""
        predicted = self._scale * (self._target(tokens) + self._per_pair * pairs)
        ratio = self._believed(seconds, predicted)
        if ratio is None:
            return
        self._scale *= ratio**_SCALE_RATE
        self._target.correct(tokens, ratio)
        share = self._per_pair * pairs / (self._target(tokens) + self._per_pair * pairs)
        low, high = self._pair_range
        self._per_pair = min(max(self._per_pair * ratio ** (_PAIR_RATE * share), low), high)
        self.observed += 1

    def observe_first_pass(self, tokens: int, seconds: float) -> None:
        """Correct the first pass's curve."""
        ratio = self._believed(seconds, self.first_pass_seconds(tokens))
        if ratio is not None:
            self._first.correct(tokens, ratio)

    def observe_next_pass(self, rows: int, seconds: float) -> None:
        """Correct the later passes' curve."""
        ratio = self._believed(seconds, self.next_pass_seconds(rows))
        if ratio is not None:
            self._next.correct(rows, ratio)

    def observe_gap(self, seconds: float) -> None:
        """Note the time between two steps of a busy engine: every step pays for it."""
        most = 2 * self._gap + 0.001
        self._gap += _GAP_RATE * (min(seconds, most) - self._gap)

    def _believed(self, seconds: float, predicted: float) -> float | None:
        """Measured over predicted, clipped; None for an outlier."""
        if seconds <= 0 or predicted <= 0:
            return None
        ratio = seconds / predicted
        if ratio > _OUTLIER:
            self._outliers += 1
            if self._outliers < _OUTLIERS_IN_A_ROW:
                return None
        else:
            self._outliers = 0
        return math.exp(min(max(math.log(ratio), -_CLIP), _CLIP))

    def info(self) -> dict[str, Any]:
        """The model as plain values, seconds."""
        return {
            "target": {tokens: self._scale * seconds for tokens, seconds in self._target.table().items()},
            "first_pass": {tokens: self._scale * value for tokens, value in self._first.table().items()},
            "next_pass": {rows: self._scale * value for rows, value in self._next.table().items()},
            "per_pair": self._scale * self._per_pair,
            "between_steps": self._gap,
            "scale": self._scale,
            "observed": self.observed,
        }
