"""Benchmark `confidence`: drafting as far as it pays against always four drafts, on six workloads.

Both variants run in one engine, in turn; the n-gram arm is off, so that the stop alone is compared. Each
workload is a tenant of its own, whose calibration its own requests warm up before anything is measured.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from adaptive.workloads import load
from tests.bench import engines, result
from tests.bench.load import WORKLOADS, measure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adaptive.workloads import Message

TEMPERATURES = (0.0, 0.7, 1.0)
FIXED, STOP = "fixed k = 4", "confidence stop"
Cell = tuple[str, str, float, int]


def plan(variant: str, workload: str) -> RequestPlan:
    """How a variant drafts."""
    return RequestPlan(tenant=workload, arm=Arm.TURBO, fixed=variant == FIXED, ngram=False)


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="confidence", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4, help="per workload, temperature and round")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--warm", type=int, default=96, help="requests per workload before measuring")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--quick", action="store_true", help="one short round, for a check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.prompts, options.tokens = 1, 1, 16
        options.warm, options.concurrency = 2, [1]
    engine = engines.adaptive(max(16, *options.concurrency))
    prompts = {
        name: itertools.cycle([list(prompt.messages) for prompt in load(name).traffic])
        for name in options.workloads
    }
    for name in options.workloads:
        for number, temperature in enumerate(TEMPERATURES):
            share = options.warm // 3 + (number < options.warm % 3)
            batch = list(itertools.islice(prompts[name], share))
            if batch:
                measure(engine, plan(STOP, name), batch, 16, options.tokens, temperature)
        print(f"warmed up {name}", flush=True)  # noqa: T201  progress
    cells: dict[Cell, list[dict[str, float]]] = defaultdict(list)
    for number in range(options.rounds):
        for place, (name, temperature, concurrency) in enumerate(
            itertools.product(options.workloads, TEMPERATURES, options.concurrency)
        ):
            batch = list(itertools.islice(prompts[name], max(options.prompts, concurrency)))
            order = (FIXED, STOP) if (number + place) % 2 else (STOP, FIXED)
            for variant in order:
                cell = _measure(engine, variant, name, temperature, concurrency, batch, options.tokens)
                title = f"{variant}, {_title(name, temperature, concurrency)}"
                print(f"round {number} {title}: {cell}", flush=True)  # noqa: T201  progress
                cells[variant, name, temperature, concurrency].append(cell)
    errors = engine.call("adapter_info")["calibration_error"]
    engine.close()
    return result.write(
        "confidence",
        result.command("confidence", arguments),
        _variants(cells) | _errors(errors),
        _ratios(cells),
        _notes(options),
    )


def _measure(
    engine: Any,
    variant: str,
    workload: str,
    temperature: float,
    concurrency: int,
    prompts: Sequence[list[Message]],
    tokens: int,
) -> dict[str, float]:
    before = _drafts(engine, workload)
    rate = measure(engine, plan(variant, workload), prompts, concurrency, tokens, temperature)
    steps, drafted, accepted = (
        now - then for now, then in zip(_drafts(engine, workload), before, strict=True)
    )
    return {
        "tokens/s": rate,
        "tau": 1 + accepted / max(steps, 1),
        "drafts per verify step": drafted / max(steps, 1),
    }


def _drafts(engine: Any, tenant: str) -> tuple[int, int, int]:
    rows = [row for row in engine.call("adapter_info")["counters"] if row["tenant"] == tenant]
    steps, drafted, accepted = (
        sum(row.get(field, 0) for row in rows) for field in ("verify_steps", "drafted", "accepted")
    )
    return steps, drafted, accepted


def _title(name: str, temperature: float, concurrency: int) -> str:
    return f"{name}, T = {temperature}, concurrency {concurrency}"


def _variants(cells: dict[Cell, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        f"{variant}, {_title(name, temperature, concurrency)}": {
            measured: result.spread([cell[measured] for cell in rounds]) for measured in rounds[0]
        }
        for (variant, name, temperature, concurrency), rounds in cells.items()
    }


def _errors(errors: dict[str, float]) -> dict[str, Any]:
    return {
        f"calibration, {name}": {"ECE in per cent": result.spread([100 * error])}
        for name, error in errors.items()
        if name in WORKLOADS
    }


def _ratios(cells: dict[Cell, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        f"tokens/s of {STOP} over {FIXED}, {_title(name, temperature, concurrency)}": result.ratios(
            [cell["tokens/s"] for cell in rounds],
            [cell["tokens/s"] for cell in cells[FIXED, name, temperature, concurrency]],
        )
        for (variant, name, temperature, concurrency), rounds in cells.items()
        if variant == STOP
    }


def _notes(options: argparse.Namespace) -> str:
    return (
        f"SmolLM2-135M-Instruct in bfloat16, eager, {options.tokens} new tokens, at least {options.prompts} "
        f"prompts per cell and round, {options.rounds} rounds; {options.warm} requests per workload, over "
        "all temperatures, come before. ECE is that of the whole run, predicted before the outcome."
    )
