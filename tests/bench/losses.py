"""Benchmark `losses`: one update with every training loss, walked over the tenant's own later traffic.

The probe is left to benchmark `learning`, so that no default is chosen on it. "rejected x" adds x to the
weight of positions whose draft turbo had rejected.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from adaptive.speculator.evaluation import accepted_runs, walk
from adaptive.speculator.objective import Objective
from tests.bench import one_update, result, text
from tests.bench.material import LOOKAHEAD, Material, answer_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adaptive.speculator.sequences import TracedSequence
    from learners.drafter import Drafter

VARIANTS: dict[str, dict[str, Any]] = {
    "KL": {"objective": Objective.KL},
    "hybrid": {"objective": Objective.HYBRID},
    "acceptance": {"objective": Objective.ACCEPTANCE},
    "KL, rejected 1": {"objective": Objective.KL, "rejected_weight": 1.0},
    "KL, rejected 3": {"objective": Objective.KL, "rejected_weight": 3.0},
    "hybrid, rejected 1": {"objective": Objective.HYBRID, "rejected_weight": 1.0},
}
BASELINE = "KL"


def mark_rejections(drafter: Drafter, sequences: Sequence[TracedSequence]) -> list[TracedSequence]:
    """The requests as turbo served them, tokens that stand where a draft was rejected marked."""
    marked = []
    for item, run in zip(sequences, accepted_runs(drafter.head, None, sequences, LOOKAHEAD), strict=True):
        flags = torch.zeros(len(item.token_ids), dtype=torch.bool)
        at = 0
        while at < len(run):
            hits = run[at]
            at += hits
            if hits < LOOKAHEAD and at < len(run):
                flags[item.first_query + at + 2] = True  # a slot drafts the token two places on
            at += 1
        marked.append(dataclasses.replace(item, rejected=flags))
    return marked


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="losses", description=__doc__)
    parser.add_argument("--workloads", default="idioma,tools")
    parser.add_argument("--training", type=int, default=240, help="requests trained on")
    parser.add_argument("--validation", type=int, default=60, help="requests walked")
    parser.add_argument("--token-steps", type=int, default=30_000, help="answer tokens processed")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--variants", default=";".join(VARIANTS), help="names, with semicolons between")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few requests, one seed")
    options = parser.parse_args(arguments)
    if options.quick:
        options.training, options.validation, options.token_steps, options.seeds = 24, 12, 2000, 1
    names = [BASELINE, *(name for name in options.variants.split(";") if name != BASELINE)]
    torch.set_num_threads(options.threads)
    material = Material(text.target_directory())
    drafter = material.drafter
    variants: dict[str, Any] = {}
    taus: dict[tuple[str, str], list[float]] = defaultdict(list)
    for workload in options.workloads.split(","):
        training = mark_rejections(drafter, material.sequences(workload, "traffic", 0, options.training))
        validation = material.sequences(
            workload, "traffic", options.training, options.training + options.validation
        )
        turbo = walk(drafter.head, None, validation, LOOKAHEAD).tau
        variants[f"turbo, {workload}"] = {"tau": result.spread([turbo])}
        seconds = defaultdict(list)
        for seed in range(options.seeds):
            for name in names:
                plan = one_update.make_plan(
                    drafter,
                    training,
                    seed=seed,
                    token_steps=min(options.token_steps, 8 * answer_tokens(training)),
                    **VARIANTS[name],
                )
                adapter, trained = one_update.run(drafter, training, plan)
                tau = walk(drafter.head, adapter, validation, LOOKAHEAD).tau
                taus[name, workload].append(tau)
                seconds[name].append(trained.seconds)
                print(f"{workload} seed {seed} {name}: tau {tau:.4f}, {trained.seconds:.0f} s", flush=True)  # noqa: T201  progress
        for name in names:
            variants[f"{name}, {workload}"] = {
                "tau": result.spread(taus[name, workload]),
                "seconds": result.spread(seconds[name]),
            }
    ratios = {
        f"tau of {name} over {BASELINE}, {workload}": result.ratios(found, taus[BASELINE, workload])
        for (name, workload), found in taus.items()
        if name != BASELINE
    }
    notes = (
        f"One update from turbo on the first {options.training} requests of each tenant (T = 0.7 traffic), "
        f"at most {options.token_steps} answer tokens processed, rank 32, learning rate and unrolling as by "
        f"default; walked over the next {options.validation} requests of traffic, 4 drafts. "
        f"{options.seeds} seeds; ratios pair equal seeds."
    )
    return result.write("losses", result.command("losses", arguments), variants, ratios, notes)
