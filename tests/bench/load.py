"""Benchmark `load`: speculation as it is served against none, from one request at a time to 32.

Every prompt is asked once, so that the n-gram arm's history never holds an answer that is asked for again.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from adaptive.workloads import Message

WORKLOADS = ("tools", "code", "math", "chat", "idioma", "format")
CONCURRENCIES = (1, 4, 16, 32)
TEMPERATURES = (0.0, 0.7, 1.0)
STOCK, ADAPTIVE, OFF = "no speculation", "adaptive", "plugin, off arm"
PLANS = {
    STOCK: RequestPlan(arm=Arm.OFF),
    ADAPTIVE: RequestPlan(tenant="load", arm=Arm.TURBO),
    # A tenant of its own: its answers must not be in the history that the other variant copies from.
    OFF: RequestPlan(tenant="off", arm=Arm.OFF),
}


def mixed() -> Iterator[list[Message]]:
    """Prompts of all workloads in turn, without end."""
    columns = [[list(prompt.messages) for prompt in load(name).traffic] for name in WORKLOADS]
    return itertools.cycle(
        prompt for row in itertools.zip_longest(*columns) for prompt in row if prompt is not None
    )


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="load", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(TEMPERATURES))
    parser.add_argument("--concurrencies", type=int, nargs="+", default=list(CONCURRENCIES))
    parser.add_argument("--quick", action="store_true", help="one short round, for a check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.tokens = 1, 24
    plugin = engines.adaptive(max(options.concurrencies))
    running = {STOCK: engines.stock(max(options.concurrencies)), ADAPTIVE: plugin, OFF: plugin}
    cells: dict[tuple[str, int, float], list[float]] = defaultdict(list)
    floor: dict[tuple[int, float], list[float]] = defaultdict(list)
    prompts = mixed()
    names = list(running)
    for number in range(-1, options.rounds):  # round -1 warms up
        for place, (concurrency, temperature) in enumerate(
            itertools.product(options.concurrencies, options.temperatures)
        ):
            batch = list(itertools.islice(prompts, max(concurrency, 4)))
            turn = (number + place + 1) % len(names)
            for name in names[turn:] + names[:turn]:
                before = plugin.call("adapter_info")
                rate = measure(running[name], PLANS[name], batch, concurrency, options.tokens, temperature)
                after = plugin.call("adapter_info")
                title = f"{name}, concurrency {concurrency}, T = {temperature}"
                print(f"round {number} {title}: {rate:.2f}", flush=True)  # noqa: T201  progress
                if number >= 0:
                    cells[name, concurrency, temperature].append(rate)
                if number >= 0 and name == ADAPTIVE:
                    steps = after["steps"] - before["steps"]
                    floor[concurrency, temperature].append(
                        (after["floor_steps"] - before["floor_steps"]) / max(steps, 1)
                    )
    for process in {id(process): process for process in running.values()}.values():
        process.close()
    return result.write(
        "load",
        result.command("load", arguments),
        _variants(cells, floor),
        _ratios(cells, options.concurrencies, options.temperatures),
        _notes(options),
    )


def measure(
    engine: Any,
    plan: RequestPlan,
    prompts: Sequence[list[Message]],
    concurrency: int,
    tokens: int,
    temperature: float,
) -> float:
    """Tokens per second over all prompts, `concurrency` at a time."""
    made = seconds = 0.0
    for first in range(0, len(prompts), concurrency):
        answer = engine.generate(
            list(prompts[first : first + concurrency]),
            max_tokens=tokens,
            temperature=temperature,
            extra_args=plan.to_extra_args(),
        )
        made += answer["tokens"]
        seconds += answer["seconds"]
    return made / seconds


def _variants(
    cells: dict[tuple[str, int, float], list[float]], floor: dict[tuple[int, float], list[float]]
) -> dict[str, Any]:
    variants: dict[str, Any] = {}
    for (name, concurrency, temperature), rates in cells.items():
        measures = {"tokens/s": result.spread(rates)}
        if name == ADAPTIVE:
            measures["share of steps without the drafter"] = result.spread(floor[concurrency, temperature])
        variants[f"{name}, concurrency {concurrency}, T = {temperature}"] = measures
    return variants


def _ratios(
    cells: dict[tuple[str, int, float], list[float]],
    concurrencies: Sequence[int],
    temperatures: Sequence[float],
) -> dict[str, Any]:
    return {
        f"tokens/s of {name} over {STOCK}, concurrency {concurrency}, T = {temperature}": result.ratios(
            cells[name, concurrency, temperature], cells[STOCK, concurrency, temperature]
        )
        for name in (ADAPTIVE, OFF)
        for concurrency in concurrencies
        for temperature in temperatures
    }


def _notes(options: argparse.Namespace) -> str:
    return (
        f"SmolLM2-135M-Instruct in bfloat16, eager, prompts of {', '.join(WORKLOADS)} in turn, each asked "
        f"once, {options.tokens} new tokens, {options.rounds} rounds after one of warm-up. Adaptive: "
        "confidence stop, n-gram arm and load floor on, turbo, K = 8 and at most 4 drafts of the model."
    )
