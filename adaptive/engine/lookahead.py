"""How far to look ahead, and whether to speculate at all: pure functions of costs and survival probabilities.

A batch earns (tokens expected of a step) / (seconds of the step). That ratio is largest where every draft
position is drafted whose survival probability exceeds `rate * marginal seconds`, `rate` being the ratio
itself (Dinkelbach, On nonlinear fractional programming, 1967). A batch in which no position pays is best
served without speculation.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

OPTIMISM: Final = (0.75, 0.57, 0.45, 0.36)
"""Joint survival by position of a well-trained head (broad text), before anything was seen."""
_KEPT: Final = 64
_TENANTS: Final = 1024
_ROUNDS: Final = 3

OFF_AFTER: Final = 4
"""Steps in a row in which speculation must not pay before it is switched off."""
OFF_BELOW: Final = 1.0
ON_ABOVE: Final = 1.03
PROBE_AFTER: Final = 512
"""Steps without speculation after which it is tried again; doubled while the trial fails."""
PROBE_AT_MOST: Final = 4096
PROBE_STEPS: Final = 6


class StepCosts(Protocol):
    """Seconds that steps and passes take."""

    def target_seconds(self, tokens: float, pairs: float = 0.0) -> float:
        """Of a target step."""

    def token_seconds(self, context: float) -> float:
        """Of attention for one token more with that context."""

    def first_pass_seconds(self, tokens: float) -> float:
        """Of the drafter's first pass."""

    def next_pass_seconds(self, rows: float) -> float:
        """Of one later pass."""


def marginal_seconds(costs: StepCosts, tokens: float, context: float, width: int) -> float:
    """Seconds that one more token costs a step of `tokens` tokens, averaged over the next `width`."""
    slope = (costs.target_seconds(tokens + width) - costs.target_seconds(tokens)) / width
    return slope + costs.token_seconds(context)


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """What a batch is expected to earn."""

    rate: float
    """Tokens per second, with speculation if that is more."""
    plain_rate: float
    """Tokens per second without speculation."""
    drafts: float
    """Draft tokens expected in all."""

    @property
    def speedup(self) -> float:
        """Of speculation over none."""
        return self.speculating_rate / self.plain_rate

    speculating_rate: float = 0.0


class Outlook:
    """The survival curves seen lately, per tenant: what drafting would earn in a batch of these tenants."""

    def __init__(self, most: int) -> None:
        """Keep curves of at most `most` positions."""
        self._most = most
        self._curves: OrderedDict[str, deque[tuple[float, ...]]] = OrderedDict()
        self._models: dict[str, NDArray[np.float64]] = {}
        self._start = np.zeros((1, most))
        self._start[0, : len(OPTIMISM)] = OPTIMISM[:most]

    def note(self, tenant: str, survivals: Sequence[float]) -> None:
        """Add the joint survival curve of one request's step."""
        curves = self._curves.get(tenant)
        if curves is None:
            curves = self._curves[tenant] = deque(maxlen=_KEPT)
            if len(self._curves) > _TENANTS:
                forgotten, _ = self._curves.popitem(last=False)
                self._models.pop(forgotten, None)
        self._curves.move_to_end(tenant)
        curves.append(tuple(survivals[: self._most]))
        self._models.pop(tenant, None)

    def forget(self, tenant: str) -> None:
        """Drop a tenant."""
        self._curves.pop(tenant, None)
        self._models.pop(tenant, None)

    def curves(self, tenant: str) -> NDArray[np.float64]:
        """[curves, positions] of a tenant."""
        found = self._models.get(tenant)
        if found is None:
            kept = self._curves.get(tenant)
            if not kept:
                return self._start
            found = np.zeros((len(kept), self._most))
            for row, curve in enumerate(kept):
                found[row, : len(curve)] = curve
            self._models[tenant] = found
        return found

    def forecast(self, costs: StepCosts, tenants: Mapping[str, int], rows: int, context: float) -> Forecast:
        """What a decode step of a batch would earn.

        Args:
            costs: of this engine.
            tenants: tenant -> rows that may draft.
            rows: all rows, those that may not draft included.
            context: mean context length.
        """
        plain = rows / costs.target_seconds(rows, rows * context)
        rate = plain
        best = Forecast(plain, plain, 0.0, 0.0)
        drafting = sum(tenants.values())
        if not drafting:
            return dataclasses.replace(best, speculating_rate=plain)
        expected_drafts = 0.0
        for _ in range(_ROUNDS):
            width = max(1, round(expected_drafts / 2)) if expected_drafts else max(1, drafting)
            price = rate * marginal_seconds(costs, rows + expected_drafts / 2, context, width)
            gain, drafts, wanted = self._drafted(tenants, price)
            later = costs.next_pass_seconds(rows)
            passes = 0.0
            for position in range(1, self._most):
                wants = 1.0 - (1.0 - wanted[position] / drafting) ** drafting
                if gain[position] - price * drafts[position] <= rate * later * wants:
                    gain[position:] = 0.0
                    drafts[position:] = 0.0
                    break
                passes += wants
            expected_drafts = float(drafts.sum())
            tokens = rows + expected_drafts
            seconds = (
                costs.target_seconds(tokens, tokens * context)
                + costs.first_pass_seconds(tokens)
                + passes * later
            )
            speculating = (rows + float(gain.sum())) / seconds
            if speculating > best.speculating_rate:
                best = Forecast(max(plain, speculating), plain, expected_drafts, speculating)
            rate = max(plain, speculating)
        return best

    def _drafted(
        self, tenants: Mapping[str, int], price: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Per position: accepted tokens, draft tokens and rows that want it, at a price per draft token."""
        gain, drafts = np.zeros(self._most), np.zeros(self._most)
        for tenant, count in tenants.items():
            curves = self.curves(tenant)
            taken = curves > price
            gain += count * (curves * taken).mean(axis=0)
            drafts += count * taken.mean(axis=0)
        return gain, drafts, drafts.copy()


class LoadFloor:
    """Switches speculation off while it does not pay, with hysteresis, and tries it again now and then."""

    def __init__(self) -> None:
        self.off = False
        self._against = 0
        self._waited = 0
        self._interval = PROBE_AFTER
        self._probing = 0

    def step(self, speedup: float) -> bool:
        """Whether the next step goes without speculation.

        Args:
            speedup: forecast for the batch, speculation over none.
        """
        if self.off:
            self._waited += 1
            if speedup > ON_ABOVE or self._waited >= self._interval:
                self._probing = 0 if speedup > ON_ABOVE else PROBE_STEPS
                self.off, self._against, self._waited = False, 0, 0
            return self.off
        if self._probing:
            # Estimates are fresh only after some steps; a trial that fails makes the next one later.
            self._probing -= 1
            if not self._probing and speedup < ON_ABOVE:
                self.off = True
                self._interval = min(2 * self._interval, PROBE_AT_MOST)
            return self.off
        self._against = self._against + 1 if speedup < OFF_BELOW else 0
        if self._against >= OFF_AFTER:
            self.off, self._against = True, 0
        elif speedup > ON_ABOVE:
            self._interval = PROBE_AFTER
        return self.off
