"""Recorded drafting: the target's answers to tenant prompts, and what its drafters draft at each slot.

Material for choosing between drafters and for calibrating them offline (tests/bench/choice_offline.py): every
rule can be walked over it exactly, because drafts do not change what the target says. `jobs` needs the
packages that ship the prompts, `record` a GPU (a CPU takes hours).
"""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from safetensors.torch import save_file

from adaptive.speculator.chains import draft_chains
from adaptive.speculator.checkpoint import load_turbo
from deploy.models.generate import Job
from deploy.models.jobs import load_jobs, render, save_jobs
from deploy.models.llama import Llama, Runner
from deploy.models.measure import answers
from deploy.models.tenants import train_adapter

if TYPE_CHECKING:
    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import TracedSequence

TEMPERATURES = (0.0, 0.7, 1.0)
TRAFFIC, PROBE = 300, 80
"""Most requests per workload, temperature and side of the split."""
DEPTH = 4
ADAPTER_TEMPERATURE = 0.7
ADAPTER_RATE, ADAPTER_STEPS, ADAPTER_ROWS = 1e-3, 60, 8

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def jobs(
    target: Annotated[Path, typer.Option(help="model directory")],
    out: Annotated[Path, typer.Option(help="file to write")],
) -> None:
    """Tokenise the prompts of every workload."""
    from transformers import AutoTokenizer  # noqa: PLC0415  # slow

    from adaptive import workloads  # noqa: PLC0415  # needs the packages that ship the data

    tokenizer = AutoTokenizer.from_pretrained(target)
    sets: dict[str, list[Job]] = {}
    for name in workloads.WORKLOADS:
        load = workloads.load(name)
        for side, prompts in (("traffic", load.traffic[:TRAFFIC]), ("probe", load.probe[:PROBE])):
            for temperature in TEMPERATURES:
                sets[f"{name}/{side}/{temperature}"] = [
                    Job(
                        tokenizer(
                            render(
                                tokenizer,
                                [{"role": m["role"], "content": m["content"]} for m in prompt.messages],
                            ),
                            add_special_tokens=False,
                        )["input_ids"],
                        prompt.max_tokens,
                        temperature,
                    )
                    for prompt in prompts
                ]
    save_jobs(out, sets)
    print({name: len(items) for name, items in sets.items()})


@app.command()
def record(
    target: Annotated[Path, typer.Option(help="model directory")],
    turbo: Annotated[Path, typer.Option(help="checkpoint directory")],
    jobs_file: Annotated[Path, typer.Option("--jobs", help="file made by `jobs`")],
    out: Annotated[Path, typer.Option(help="directory to write, one file per workload")],
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
) -> None:
    """Answer every prompt, train an adapter on each workload's traffic, draft from every slot."""
    begun = time.monotonic()
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    llama = Llama.from_directory(target, device, dtype)
    runner = Runner(llama, compiled=False)
    head = load_turbo(turbo, llama.embedding.float(), device=device)
    rows = llama.output[head.draft_token_ids.to(device)].float()
    sets = load_jobs(jobs_file)
    out.mkdir(parents=True, exist_ok=True)
    for name in sorted({key.split("/")[0] for key in sets}):
        adapter: Adapter | None = None
        tensors: dict[str, torch.Tensor] = {}
        # The adapter's training text first.
        for temperature in sorted(TEMPERATURES, key=lambda t: t != ADAPTER_TEMPERATURE):
            for side in ("traffic", "probe"):
                part = f"{side}/{temperature}"
                sequences = answers(runner, head, sets[f"{name}/{part}"], device, rows=512)
                if adapter is None:
                    adapter = train_adapter(
                        head, sequences, rows, rate=ADAPTER_RATE, steps=ADAPTER_STEPS, rows=ADAPTER_ROWS
                    )
                tensors |= {
                    f"{part}/{key}": value for key, value in _record(head, adapter, sequences).items()
                }
        save_file(tensors, out / f"{name}.safetensors")
        size = sum(value.nbytes for value in tensors.values()) / 1e6
        print(f"{name}: {size:.1f} MB, {time.monotonic() - begun:.0f} s", flush=True)


def _record(head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence]) -> dict[str, torch.Tensor]:
    """Flat arrays: tokens int32, per sequence its length and answer_start, per arm drafts and log-odds."""
    found = {
        "tokens": torch.cat([item.token_ids for item in sequences]).int(),
        "shape": torch.tensor([(len(item.token_ids), item.answer_start) for item in sequences]).int(),
    }
    for arm, used in (("turbo", None), ("adapter", adapter)):
        chains = draft_chains(head, used, sequences, DEPTH)
        found[f"{arm}.tokens"] = torch.cat([chain.tokens for chain in chains]).int()
        found[f"{arm}.log_odds"] = torch.cat([chain.log_odds for chain in chains]).half()
    return found


if __name__ == "__main__":
    app()
