"""Benchmark `choice_offline`: tokens per verify step of every rule, walked exactly over recorded drafting.

Rules see the tenant's traffic first (history and calibration), then its probe, which no threshold or prior
was chosen on. "choice" prices its drafts by the cost model of tests/bench/walking.py; "choice, free" drafts
as if nothing cost anything. The oracle takes the best of turbo, adapter and every copy at each verify step.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from adaptive.engine.calibration import Calibration, Priors
from adaptive.engine.choice import Costs, DraftChoice
from adaptive.engine.ngram import NgramDrafter
from adaptive.engine.suffix import warm_up
from adaptive.workloads import WORKLOADS
from deploy.models.recordings import TEMPERATURES
from tests.bench import result
from tests.bench.priors import PATH
from tests.bench.recordings import Recording, read
from tests.bench.walking import MOST_COPIED, MOST_DRAFTED, Chosen, Fixed, Walk, matches, walk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FREE = Costs([1e-9 * k for k in range(MOST_COPIED + 1)], 0.0, 1.0)


class Best:
    """The best of some arms and the copies by what they turn out to accept: no rule can do better."""

    def __init__(self, arms: Sequence[str]) -> None:
        self._arms, self._drafter = arms, NgramDrafter()

    def begin(self, number: int, request: Recording) -> None:
        """Admit it."""
        self._id, self._request = f"{number}", request
        self._drafter.begin(self._id, "tenant", request.prompt)
        self._drafter.extend(self._id, request.answer[:1])

    def draft(self, slot: int) -> tuple[Sequence[int], int, bool]:
        """The accepted part of the best chain."""
        truth = self._request.answer[slot + 1 : slot + 2 + MOST_COPIED]
        chains = [self._request.drafts[arm][slot][:MOST_DRAFTED] for arm in self._arms]
        first = chains[-1][0] if chains else None
        found = self._drafter.propose(self._id, first, MOST_COPIED)
        best = max(
            [*chains, *(candidate.tokens for candidate in found), ()],
            key=lambda chain: matches(chain, truth),
        )
        return best[: matches(best, truth)], MOST_DRAFTED, False

    def verified(self, emitted: Sequence[int]) -> None:
        """Search behind them."""
        self._drafter.extend(self._id, emitted)

    def end(self) -> None:
        """Remember."""
        self._drafter.end(self._id)


def cell(workload: str, temperature: float, requests: int | None) -> dict[str, Walk | float]:
    """Every rule on one workload's probe, and the calibration error of 500 requests of traffic."""
    traffic = read(workload, "traffic", temperature)[:requests]
    probe = read(workload, "probe", temperature)[:requests]
    found: dict[str, Walk | float] = {arm: walk(Fixed(arm), probe) for arm in ("turbo", "adapter")}
    for name, arms in (("copies, oracle", ()), ("oracle", ("turbo", "adapter"))):
        best = Best(arms)
        walk(best, traffic)
        found[name] = walk(best, probe)
    for name, costs, stop in (("choice", None, True), ("choice, free", FREE, False)):
        choice = DraftChoice(NgramDrafter(), Calibration(Priors.load(PATH)))
        rule = (
            Chosen(choice, "adapter", temperature)
            if costs is None
            else Chosen(choice, "adapter", temperature, costs, stop=stop)
        )
        walk(rule, traffic)
        found[name] = walk(rule, probe)
        if costs is None:
            errors = choice.calibration.errors()["tenant"]
            found |= {f"ECE in per cent, {judge}": 100 * error for judge, error in errors.items()}
    return found


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="choice_offline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few requests, for a check that it runs")
    options = parser.parse_args(arguments)
    warm_up()
    variants: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for name in WORKLOADS:
        for temperature in TEMPERATURES:
            title = f"{name}, T = {temperature}"
            found = cell(name, temperature, 10 if options.quick else None)
            walks = {rule: value for rule, value in found.items() if isinstance(value, Walk)}
            variants |= {
                f"{rule}, {title}": {"tau": result.spread([value.tau])} for rule, value in walks.items()
            }
            variants[f"calibration, {title}"] = {
                rule: result.spread([value]) for rule, value in found.items() if isinstance(value, float)
            }
            chosen, free, adapter = walks["choice"], walks["choice, free"], walks["adapter"]
            for measured, ratio in {
                "tau of choice, free over adapter": free.tau / adapter.tau,
                "tau of choice, free over turbo": free.tau / walks["turbo"].tau,
                "tau of choice, free over oracle": free.tau / walks["oracle"].tau,
                "modelled tokens/s of choice over adapter": chosen.speed / adapter.speed,
            }.items():
                ratios[f"{measured}, {title}"] = result.spread([ratio])
            print(title, {rule: round(value.tau, 2) for rule, value in walks.items()}, flush=True)  # noqa: T201  progress
    return result.write("choice_offline", "make bench NAME=choice_offline", variants, ratios, str(__doc__))
