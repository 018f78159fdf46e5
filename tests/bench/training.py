"""Benchmark `training`: answer tokens per second of an update, and its peak memory, by precision and packing.

Variants take turns on equal steps. "weights" casts turbo once, "autocast" keeps it in float32 and casts in
every product, "padded" is a row of its own for every request.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from adaptive.speculator.adapter import Adapter, AdapterConfig
from adaptive.speculator.loss import unrolled_loss
from adaptive.speculator.objective import Objective
from adaptive.speculator.sequences import collate, pack_step
from learners.drafter import load_drafter
from learners.memory import PeakMemory
from tests.bench import result, text
from tests.bench.material import Material

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adaptive.speculator.sequences import TracedSequence
    from learners.drafter import Drafter


@dataclasses.dataclass(frozen=True)
class Variant:
    """How a step is computed."""

    precision: str
    autocast: bool = False
    packed: bool = True
    objective: Objective = Objective.KL


VARIANTS = {
    "bfloat16 weights": Variant("bfloat16"),
    "bfloat16 autocast": Variant("float32", autocast=True),
    "float32": Variant("float32"),
    "bfloat16 weights, padded": Variant("bfloat16", packed=False),
    "bfloat16 weights, hybrid": Variant("bfloat16", objective=Objective.HYBRID),
    "bfloat16 weights, acceptance": Variant("bfloat16", objective=Objective.ACCEPTANCE),
}
DEPTH = 3


def step(variant: Variant, drafter: Drafter, adapter: Adapter, sequences: Sequence[TracedSequence]) -> float:
    """Loss and gradient of one step; the share of it that was padding."""
    batch = (
        pack_step(sequences) if variant.packed else collate(sequences, [[i] for i in range(len(sequences))])
    )
    padding = batch.padding
    batch = batch.to("cpu", drafter.head.fc.weight.dtype)
    with torch.autocast("cpu", torch.bfloat16) if variant.autocast else nullcontext():
        loss = unrolled_loss(
            drafter.head, adapter, batch, DEPTH, target_rows=drafter.target_rows, objective=variant.objective
        ).loss
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return padding


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="training", description=__doc__)
    parser.add_argument("--workloads", default="tools,idioma")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each variant and workload")
    parser.add_argument("--requests", type=int, default=5, help="of a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one round, for a check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.workloads = 1, "tools"
    torch.set_num_threads(options.threads)
    target = text.target_directory()
    material = Material(target)
    drafters = {
        "bfloat16": material.drafter,
        "float32": load_drafter(target, text.turbo_directory(), "float32"),
    }
    variants: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for workload in options.workloads.split(","):
        sequences = material.sequences(workload, "traffic", 0, options.rounds * options.requests)
        cells: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in VARIANTS}
        names = list(VARIANTS)
        for number in range(-1, options.rounds):  # round -1 warms up
            first = max(number, 0) * options.requests
            chosen = sequences[first : first + options.requests]
            turn = (number + 1) % len(names)
            for name in names[turn:] + names[:turn]:
                variant = VARIANTS[name]
                drafter = drafters[variant.precision]
                adapter = Adapter(AdapterConfig(), drafter.head.config)
                memory = PeakMemory(torch.device("cpu"))
                before = memory.peak_bytes()
                began = time.perf_counter()
                padding = step(variant, drafter, adapter, chosen)
                seconds = time.perf_counter() - began
                if number >= 0:
                    cells[name]["answer tokens/s"].append(sum(item.queries for item in chosen) / seconds)
                    cells[name]["peak above the models in MiB"].append(
                        (memory.peak_bytes() - before) / (1 << 20)
                    )
                    cells[name]["padding in per cent"].append(100 * padding)
        for name, measures in cells.items():
            variants[f"{name}, {workload}"] = {key: result.spread(found) for key, found in measures.items()}
        base = cells["float32"]["answer tokens/s"]
        for name in names:
            if name != "float32":
                ratios[f"tokens/s of {name} over float32, {workload}"] = result.ratios(
                    cells[name]["answer tokens/s"], base
                )
    notes = (
        f"Loss and gradient of steps of {options.requests} requests (T = 0.7 traffic), {DEPTH} unrolled "
        f"passes, adapter of rank 32, {options.threads} thread; {options.rounds} rounds."
    )
    return result.write("training", result.command("training", arguments), variants, ratios, notes)
