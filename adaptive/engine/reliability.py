"""How far predicted probabilities are from what happened: expected calibration error over rolling bins."""

from __future__ import annotations

from typing import Final

BINS: Final = 15


class Reliability:
    """Discounted counts per bin of predicted probability.

    Args:
        half_life: Outcomes after which an outcome counts half.
    """

    def __init__(self, half_life: float = 20_000.0) -> None:
        self._grow: Final = 2.0 ** (1.0 / half_life)
        self._unit = 1.0
        self._count = [0.0] * BINS
        self._predicted = [0.0] * BINS
        self._happened = [0.0] * BINS
        self.outcomes = 0

    def add(self, probability: float, outcome: bool) -> None:
        """Note one prediction and its outcome."""
        bin_ = min(int(probability * BINS), BINS - 1)
        self._count[bin_] += self._unit
        self._predicted[bin_] += self._unit * probability
        self._happened[bin_] += self._unit * outcome
        self.outcomes += 1
        self._unit *= self._grow  # newer outcomes weigh more, which discounts the older ones
        if self._unit > 1e12:
            for series in (self._count, self._predicted, self._happened):
                series[:] = [value / self._unit for value in series]
            self._unit = 1.0

    @property
    def error(self) -> float:
        """Expected calibration error: mean |predicted - happened| of the bins, by outcomes; 0 if none."""
        total = sum(self._count)
        if not total:
            return 0.0
        gaps = zip(self._predicted, self._happened, strict=True)
        return sum(abs(predicted - happened) for predicted, happened in gaps) / total
