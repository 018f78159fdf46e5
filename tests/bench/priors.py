"""Fits the global calibration that tenants start from, on recorded traffic (never on probes).

`python -m tests.bench.priors` writes adaptive/engine/priors.json.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from adaptive.engine.calibration import Calibration, Prior, Priors
from adaptive.engine.choice import Costs, DraftChoice, Plan
from adaptive.engine.ngram import NgramDrafter
from adaptive.engine.survival import WIDTHS, Judge
from adaptive.workloads import WORKLOADS
from deploy.models.recordings import TEMPERATURES
from tests.bench import recordings, result
from tests.bench.walking import MOST_COPIED, Chosen, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adaptive.engine.survival import Row

REQUESTS = 200
"""Per workload and temperature, the first of its traffic."""
WORTH = 100
"""Observations that a prior counts as."""
RIDGE = 1.0
FREE = Costs([0.0] * (MOST_COPIED + 1), 0.0, 0.0)
PATH = result.ROOT / "adaptive" / "engine" / "priors.json"
UNSEEN = {Judge.COPY_FIRST: {6: 1.0, 12: 1.5}, Judge.COPY_LATER: {6: 0.5, 12: 0.0}}
"""Weights of features that the recordings never have: copies of a prediction, and copies judged without the
model's first draft (half of what its agreement is worth). Tenants' own steps correct them."""


class Collector(Calibration):
    """Keeps what it is told instead of learning from it."""

    def __init__(self) -> None:
        flat = {judge: Prior([0.0] * width, np.eye(width).tolist()) for judge, width in WIDTHS.items()}
        super().__init__(Priors(flat))
        self.rows: dict[Judge, list[Row]] = {judge: [] for judge in Judge}
        self.outcomes: dict[Judge, list[bool]] = {judge: [] for judge in Judge}

    def observe(
        self, tenant: str, rows: Sequence[tuple[Judge, Row]], accepted: int, *, rejected: bool
    ) -> None:
        """Keep the positions whose outcome is known."""
        del tenant
        for index, (judge, row) in enumerate(rows[: accepted + rejected]):
            self.rows[judge].append(row)
            self.outcomes[judge].append(index < accepted)


class _ModelOnly(DraftChoice):
    """Looks for copies, so that they are compared with the text, but never takes one."""

    def plan(self, *args: object, **options: object) -> Plan:
        """The model's plan."""
        found = super().plan(*args, **options)  # type: ignore[arg-type]
        return Plan(None, found.length, found.value)


def collect(workloads: Iterable[str], arm: str = "turbo", requests: int = REQUESTS) -> Collector:
    """Every judged token of the workloads' traffic."""
    collector = Collector()
    for name in workloads:
        for temperature in TEMPERATURES:
            choice = _ModelOnly(NgramDrafter(), collector)
            rule = Chosen(choice, arm, temperature, FREE, stop=False)
            walk(rule, recordings.read(name, "traffic", temperature)[:requests])
    return collector


def fit(collector: Collector, worth: float = WORTH) -> Priors:
    """Logistic regression per fit; turbo's serve the adapter too."""
    fits = {}
    for judge in (Judge.TURBO, Judge.AHEAD_TURBO, Judge.COPY_FIRST, Judge.COPY_LATER):
        x = np.array(collector.rows[judge], np.float64)
        y = np.array(collector.outcomes[judge], np.float64)
        weights = np.zeros(x.shape[1])
        for _ in range(25):
            p = 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -30, 30)))
            information = (x * (p * (1 - p))[:, None]).T @ x
            step = x.T @ (y - p) - RIDGE * weights
            weights += np.linalg.solve(information + RIDGE * np.eye(x.shape[1]), step)
        for feature, weight in UNSEEN.get(judge, {}).items():
            weights[feature] = weight
        precision = worth / len(y) * information + 0.5 * np.eye(x.shape[1])
        fits[judge] = Prior(np.round(weights, 4).tolist(), np.round(precision, 4).tolist())
    fits[Judge.ADAPTER] = fits[Judge.TURBO]
    fits[Judge.AHEAD_ADAPTER] = fits[Judge.AHEAD_TURBO]
    return Priors(fits)


def main() -> None:
    """Fit and write."""
    argparse.ArgumentParser(prog="priors", description=__doc__).parse_args()
    collector = collect(WORKLOADS)
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(fit(collector)), indent=1) + b"\n")
    counts = {str(judge): len(rows) for judge, rows in collector.rows.items() if rows}
    print(f"wrote {PATH}: {counts}")  # noqa: T201  a command


if __name__ == "__main__":
    main()
