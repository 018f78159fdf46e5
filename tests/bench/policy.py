"""Benchmark `policy`: regret of the controller's weights over arms against the best fixed arm in hindsight.

Every request of the recordings is scored by walking turbo's and the adapter's recorded drafts over the
target's recorded answer, as the learner scores a trace; `off` needs one step per token. Seconds of a step by
its tokens are those that benchmark `load` measured without speculation on two CPU cores, those of a drafter
pass are tests/bench/walking.py's. Stationary: one workload, temperature and load, requests in a new order per
seed. Drifting: four stretches of other workloads, temperatures or loads in one stream. Hedge sees every arm's
score, the bandits (River) only their own arm's; all walk the same traces. No constant was chosen on them.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from typing import TYPE_CHECKING, Any

from adaptive.contracts import Arm, ArmScore, ArmScored
from adaptive.workloads import WORKLOADS
from controller.goodput import StepCosts, arm_seconds
from controller.replaying import ScoredTrace, compare, policies
from deploy.models.recordings import TEMPERATURES
from tests.bench import result
from tests.bench.recordings import read
from tests.bench.walking import MOST_DRAFTED, PASS, Fixed, walk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.bench.recordings import Recording

SEEDS = 20
STRETCH, STRETCHES = 150, 4
LOADS = (1, 4, 12)
"""Requests in a step."""
Key = tuple[str, float]


def score(request: Recording) -> ArmScored:
    """Every arm's score on one request."""
    scores = []
    for arm, version in ((Arm.TURBO, 0), (Arm.ADAPTER, 1)):
        done = walk(Fixed(arm.value), [request])
        scores.append(ArmScore(arm, version, done.steps, done.drafted, done.accepted))
    return ArmScored("tenant", "trace", 0.0, "", "", len(request.prompt), MOST_DRAFTED, scores)


def step_costs() -> dict[int, StepCosts]:
    """Per load, from the recorded tokens per second of an engine without speculation."""
    recorded = json.loads((result.ROOT / "docs" / "benchmarks" / "load.json").read_text())["variants"]
    target = {}
    for variant, measures in recorded.items():
        found = re.fullmatch(r"no speculation, concurrency (\d+), T = 0.0", variant)
        if found:
            rows = int(found[1])
            target[rows] = rows / measures["tokens/s"]["median"]
    return {rows: StepCosts.at_load(target, PASS, rows, MOST_DRAFTED) for rows in LOADS}


COSTS = step_costs()


def priced(scored: ArmScored, load: int) -> ScoredTrace:
    """A scored request at an engine's load."""
    tokens = scored.scores[0].verify_steps + scored.scores[0].accepted
    return ScoredTrace(tokens, arm_seconds(scored, COSTS[load]))


def stationary(
    scores: Mapping[Key, Sequence[ArmScored]], key: Key, load: int, seed: int
) -> list[ScoredTrace]:
    """One workload, its requests in an order of the seed's."""
    order = random.Random(seed).sample(scores[key], len(scores[key]))  # noqa: S311  a simulation
    return [priced(scored, load) for scored in order]


def drifting(scores: Mapping[Key, Sequence[ArmScored]], seed: int) -> list[ScoredTrace]:
    """Stretches that differ in workload, temperature and load."""
    chance = random.Random(seed)  # noqa: S311  a simulation
    cells = [(key, load) for key in scores for load in LOADS]
    stream: list[ScoredTrace] = []
    for key, load in chance.sample(cells, STRETCHES):
        picked = chance.sample(scores[key], min(STRETCH, len(scores[key])))
        stream += [priced(scored, load) for scored in picked]
    return stream


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="policy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 seeds of few requests, to see that it runs")
    options = parser.parse_args(arguments)
    seeds, most = (range(3), 40) if options.quick else (range(SEEDS), None)
    scores = {
        (name, temperature): [
            score(request) for request in read(name, "traffic", temperature)[:most] if request.slots > 0
        ]
        for name in WORKLOADS
        for temperature in TEMPERATURES
    }
    streams: dict[str, list[list[ScoredTrace]]] = {
        f"stationary, {name}, T = {temperature}, load {load} ": [
            stationary(scores, (name, temperature), load, seed) for seed in seeds
        ]
        for name, temperature in scores
        for load in LOADS
    }
    streams["drifting"] = [drifting(scores, seed) for seed in seeds]
    regrets: dict[str, dict[str, list[float]]] = {}
    for title, runs in streams.items():
        for seed, stream in zip(seeds, runs, strict=True):
            for name, outcome in compare(stream, policies(seed)).items():
                regrets.setdefault(title, {}).setdefault(name, []).append(100 * outcome.regret)
        print(title, {name: round(max(values), 2) for name, values in regrets[title].items()}, flush=True)  # noqa: T201  progress
    return result.write("policy", result.command("policy", arguments), tables(regrets), {}, str(__doc__))


def tables(regrets: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Regret in per cent: all stationary streams together, those of each load, drifting ones."""
    found: dict[str, Any] = {}
    for name in regrets["drifting"]:
        found[name] = {
            f"regret in %, {title}": result.spread(
                [value for cell in regrets if part in cell for value in regrets[cell].get(name, ())]
            )
            for title, part in (
                ("all stationary streams", "stationary"),
                *((f"stationary, load {load}", f"load {load} ") for load in LOADS),
                ("drifting", "drifting"),
            )
        }
    return found
