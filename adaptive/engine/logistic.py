"""Online logistic regression with a Gaussian prior and discounted evidence, in plain numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BATCH: Final = 64
"""Observations per Newton step."""
_LOGIT_LIMIT: Final = 30.0
_NEWTON_STEPS: Final = 3
_HALVINGS: Final = 12


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), never exactly 0 or 1."""
    return 1.0 / (1.0 + math.exp(-min(max(logit, -_LOGIT_LIMIT), _LOGIT_LIMIT)))


class Logistic:
    """P(y | x) = sigmoid(w x), w drawn towards a prior and following the data.

    Observations are taken in batches of BATCH, a few damped Newton steps each on the discounted log posterior
    (a Laplace approximation of the earlier ones). With few observations it is the prior's fit; after many,
    evidence older than the half-life counts little.

    Args:
        weights: The prior's mean.
        precision: The prior's precision [n][n]: the information of as many observations as it is worth.
        half_life: Observations after which evidence counts half.
    """

    def __init__(
        self, weights: Sequence[float], precision: Sequence[Sequence[float]], half_life: float = 20_000.0
    ) -> None:
        self._prior = np.array(weights, np.float64)
        self._prior_precision = np.array(precision, np.float64)
        self._decay: Final = 0.5 ** (1.0 / half_life)
        self._w = self._prior.copy()
        self._information = np.zeros_like(self._prior_precision)
        self._weights = list(weights)
        self._rows: list[Sequence[float]] = []
        self._outcomes: list[bool] = []
        self.observations = 0

    def probability(self, row: Sequence[float]) -> float:
        """P(y) for a row of features."""
        return sigmoid(sum(w * x for w, x in zip(self._weights, row, strict=True)))

    def observe(self, row: Sequence[float], outcome: bool) -> None:
        """Note an outcome; every BATCH of them moves the weights."""
        self._rows.append(row)
        self._outcomes.append(outcome)
        self.observations += 1
        if len(self._rows) >= BATCH:
            self._update()

    def _update(self) -> None:
        x, y = np.array(self._rows), np.array(self._outcomes, np.float64)
        self._rows, self._outcomes = [], []
        kept = self._decay ** len(y)
        start, evidence = self._w, self._information * kept
        around = self._prior_precision + evidence
        # The old estimate balances prior and evidence; what discounting takes from the evidence comes back as
        # a pull towards the prior.
        pull = (1.0 - kept) * self._prior_precision @ (start - self._prior)

        def loss(w: NDArray[np.float64]) -> float:
            logits = x @ w
            moved = w - start
            fit = np.logaddexp(0.0, logits).sum() - y @ logits
            return float(fit + 0.5 * moved @ around @ moved + pull @ moved)

        w, lowest = start, loss(start)
        for _ in range(_NEWTON_STEPS):
            p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -_LOGIT_LIMIT, _LOGIT_LIMIT)))
            curvature = (x * (p * (1.0 - p))[:, None]).T @ x
            gradient = x.T @ (y - p) - around @ (w - start) - pull
            step = np.linalg.solve(around + curvature, gradient)
            # Where the fit is sure and wrong the curvature is tiny and a whole step overshoots.
            for _ in range(_HALVINGS):
                tried = loss(w + step)
                if tried <= lowest:
                    w, lowest = w + step, tried
                    break
                step = step / 2
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -_LOGIT_LIMIT, _LOGIT_LIMIT)))
        self._information = evidence + (x * (p * (1.0 - p))[:, None]).T @ x
        self._w = w
        self._weights = w.tolist()

    def state(self) -> dict[str, object]:
        """Weights and information as plain lists (a batch that is not full yet is left out)."""
        return {
            "weights": self._w.tolist(),
            "information": self._information.tolist(),
            "observations": self.observations,
        }

    def restore(self, state: dict[str, object]) -> None:
        """Take over what `state` gave.

        Raises:
            ValueError: the shapes are another model's, or a number is not finite.
        """
        weights = np.array(state["weights"], np.float64)
        information = np.array(state["information"], np.float64)
        if weights.shape != self._prior.shape or information.shape != self._prior_precision.shape:
            raise ValueError(
                f"weights of shape {weights.shape} do not fit {self._prior.shape}: the features changed; "
                "leave the saved calibration out"
            )
        if not (np.isfinite(weights).all() and np.isfinite(information).all()):
            raise ValueError("weights or information are not finite: leave the saved calibration out")
        self._w, self._information = weights, information
        self._weights = weights.tolist()
        self.observations = int(str(state["observations"]))
