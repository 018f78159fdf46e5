"""Benchmark `adapters`: rank against budget, and what the draft vocabulary's coverage costs.

Walked over the tenant's own later traffic, as benchmark `losses`. A rejection is coverage's where the true
token is not in the draft vocabulary. "extended by n" gives the drafter the target's LM head rows of the n
most frequent such tokens in the training requests, for turbo and for an adapter trained with them.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from adaptive.speculator.checkpoint import WEIGHTS
from adaptive.speculator.evaluation import accepted_runs, walk
from adaptive.speculator.head import Eagle3Head
from tests.bench import one_update, result, text
from tests.bench.material import LOOKAHEAD, Material, answer_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.sequences import TracedSequence
    from learners.drafter import Drafter


def rejections(
    head: Eagle3Head, adapter: Adapter | None, sequences: Sequence[TracedSequence]
) -> tuple[int, int]:
    """Rejections of the walk, and those whose true token is not in the draft vocabulary."""
    total = outside = 0
    for item, run in zip(sequences, accepted_runs(head, adapter, sequences, LOOKAHEAD), strict=True):
        at = 0
        while at < len(run):
            hits = run[at]
            at += hits
            if hits < LOOKAHEAD and at < len(run):
                total += 1
                outside += not bool(head.t2d[item.token_ids[item.first_query + at + 2]])
            at += 1
    return total, outside


def extended(drafter: Drafter, sequences: Sequence[TracedSequence], count: int) -> Drafter:
    """The drafter with `count` more tokens, the most frequent ones of the answers that it lacks."""
    head = drafter.head
    seen: Counter[int] = Counter()
    for item in sequences:
        seen.update(token for token in item.token_ids[item.answer_start :].tolist() if not head.t2d[token])
    added = [token for token, _ in seen.most_common(count)]
    if not added:
        return drafter
    config = dataclasses.replace(head.config, draft_vocab_size=head.config.draft_vocab_size + len(added))
    larger = Eagle3Head(config, head.embedding).to(head.fc.weight.dtype)
    table = _output_rows(drafter.target_directory)
    ids = torch.cat([head.draft_token_ids, torch.tensor(added)])
    order = ids.argsort()
    rows = torch.cat([head.lm_head.weight, table[added].to(head.lm_head.weight.dtype)])
    state = {name: value for name, value in head.state_dict().items() if name not in {"d2t", "t2d"}}
    state["lm_head.weight"] = rows[order]
    larger.load_state_dict(state, strict=False)
    larger.set_draft_vocabulary(ids[order])
    larger.requires_grad_(requires_grad=False)
    return dataclasses.replace(drafter, head=larger, target_rows=table[ids[order]].to(rows.dtype))


def _output_rows(directory: Path) -> Tensor:
    with safe_open(directory / WEIGHTS, framework="pt") as file:
        names = set(file.keys())
        name = "lm_head.weight" if "lm_head.weight" in names else "model.embed_tokens.weight"
        table: Tensor = file.get_tensor(name)
    return table


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="adapters", description=__doc__)
    parser.add_argument("--workloads", default="idioma,format,tools,code")
    parser.add_argument("--ranks", default="8,16,32,64")
    parser.add_argument("--budgets", default="40,240", help="training requests")
    parser.add_argument("--extensions", default="256,1024")
    parser.add_argument("--validation", type=int, default=60)
    parser.add_argument("--token-steps", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few requests, for a check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.ranks, options.budgets, options.extensions = "8", "12", "64"
        options.validation, options.token_steps = 12, 1000
    torch.set_num_threads(options.threads)
    material = Material(text.target_directory())
    ranks = [int(rank) for rank in options.ranks.split(",") if rank]
    budgets = [int(budget) for budget in options.budgets.split(",")]
    variants: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for workload in options.workloads.split(","):
        training = material.sequences(workload, "traffic", 0, budgets[-1])
        validation = material.sequences(workload, "traffic", budgets[-1], budgets[-1] + options.validation)
        turbo = _row(variants, f"turbo, {workload}", material.drafter, None, validation)
        for rank in ranks:
            for budget in budgets:
                adapter = _train(material.drafter, training[:budget], options.token_steps, rank)
                name = f"rank {rank}, {budget} requests, {workload}"
                tau = _row(variants, name, material.drafter, adapter, validation)
                ratios[f"tau of {name} over turbo"] = result.ratios([tau], [turbo])
        for count in [int(one) for one in options.extensions.split(",") if one]:
            drafter = extended(material.drafter, training, count)
            tau = _row(variants, f"turbo extended by {count}, {workload}", drafter, None, validation)
            ratios[f"tau of turbo extended by {count} over turbo, {workload}"] = result.ratios([tau], [turbo])
            adapter = _train(drafter, training, options.token_steps, 32)
            name = f"rank 32, {budgets[-1]} requests, extended by {count}, {workload}"
            tau = _row(variants, name, drafter, adapter, validation)
            ratios[f"tau of {name} over turbo"] = result.ratios([tau], [turbo])
    notes = (
        f"One update from turbo on the first requests of each tenant (T = 0.7 traffic), at most "
        f"{options.token_steps} answer tokens processed and 8 passes; walked over {options.validation} later "
        f"requests, {LOOKAHEAD} drafts. One seed."
    )
    return result.write("adapters", result.command("adapters", arguments), variants, ratios, notes)


def _train(drafter: Drafter, sequences: list[TracedSequence], token_steps: int, rank: int) -> Adapter:
    most = min(token_steps, 8 * answer_tokens(sequences))
    plan = one_update.make_plan(drafter, sequences, token_steps=most, rank=rank)
    return one_update.run(drafter, sequences, plan)[0]


def _row(
    variants: dict[str, Any],
    name: str,
    drafter: Drafter,
    adapter: Adapter | None,
    sequences: Sequence[TracedSequence],
) -> float:
    tau = walk(drafter.head, adapter, sequences, LOOKAHEAD).tau
    total, outside = rejections(drafter.head, adapter, sequences)
    answers = [item.token_ids[item.answer_start :] for item in sequences]
    inside = sum(int(drafter.head.t2d[answer].sum()) for answer in answers)
    variants[name] = {
        "tau": result.spread([tau]),
        "per cent of rejections outside the draft vocabulary": result.spread([100 * outside / max(1, total)]),
        "per cent of answer tokens in the draft vocabulary": result.spread(
            [100 * inside / max(1, answer_tokens(sequences))]
        ),
    }
    print(f"{name}: tau {tau:.3f}, {outside} of {total} rejections outside", flush=True)  # noqa: T201  progress
    return tau
