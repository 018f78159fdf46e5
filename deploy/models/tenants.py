"""How much an adapter gains over a turbo on tenant workloads: the study behind the learner's defaults."""

from __future__ import annotations

import json
import time
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from adaptive.speculator.adapter import Adapter, AdapterConfig
from adaptive.speculator.checkpoint import load_turbo
from adaptive.speculator.loss import unrolled_loss
from adaptive.speculator.sequences import batches
from deploy.models.generate import Job
from deploy.models.jobs import EVALUATION_LIMIT, load_jobs, render
from deploy.models.llama import Llama, Runner
from deploy.models.measure import answers, score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import TracedSequence
    from adaptive.workloads import Message

TENANTS = ("tools", "idioma", "format")
EVALUATED = ("tools", "code", "math", "idioma", "format")
TRAFFIC_TOKENS = 60_000
TRAFFIC_TEMPERATURE = 0.7

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def tenant_jobs(tokenizer: PreTrainedTokenizerBase, count: int) -> dict[str, list[Job]]:
    """Probe prompts of every workload (greedy) and traffic of the tenants (T=0.7, about 60 k tokens)."""
    from adaptive import workloads  # noqa: PLC0415  # needs the packages that ship the data

    sets: dict[str, list[Job]] = {}
    for name in EVALUATED:
        load = workloads.load(name)
        probe = [_encode(tokenizer, prompt.messages) for prompt in load.probe]
        extra = [] if name in TENANTS else [_encode(tokenizer, prompt.messages) for prompt in load.traffic]
        sets[f"evaluate.{name}"] = [Job(ids, EVALUATION_LIMIT, 0.0) for ids in (probe + extra)[:count]]
        if name in TENANTS:
            traffic = [_encode(tokenizer, prompt.messages) for prompt in load.traffic]
            repeats = max(1, TRAFFIC_TOKENS // (60 * len(traffic)))
            sets[f"traffic.{name}"] = [
                Job(ids, EVALUATION_LIMIT, TRAFFIC_TEMPERATURE) for ids in traffic * repeats
            ]
    return sets


def _encode(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    plain = [{"role": message["role"], "content": message["content"]} for message in messages]
    ids: list[int] = tokenizer(render(tokenizer, plain), add_special_tokens=False)["input_ids"]
    return ids


def take(sequences: Sequence[TracedSequence], tokens: int) -> list[TracedSequence]:
    """The first requests that hold `tokens` answer tokens."""
    out, count = [], 0
    for item in sequences:
        if count >= tokens:
            break
        out.append(item)
        count += item.queries
    return out


def train_adapter(
    head: Eagle3Head,
    sequences: Sequence[TracedSequence],
    target_rows: torch.Tensor,
    *,
    rate: float,
    steps: int,
    rows: int,
    depth: int = 4,
    seed: int = 0,
) -> Adapter:
    """Train a fresh adapter: cosine schedule, rows of 512 slots, `rows` of them a step."""
    generator = torch.Generator().manual_seed(seed)
    device = head.fc.weight.device
    adapter = Adapter(AdapterConfig(), head.config, generator).to(device)
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=min(0.3, 5 / steps), div_factor=5.0
    )
    step = 0
    while step < steps:
        for batch in batches(sequences, 512, rows, generator):
            ready = batch.to(device, torch.float32)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                result = unrolled_loss(head, adapter, ready, depth, target_rows=target_rows)
            optimizer.zero_grad()
            result.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
            torch.nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step == steps:
                break
    return adapter


GRID = (  # answer tokens, peak rate, steps, rows of 512 a step
    (10_000, 1e-3, 20, 4), (10_000, 1e-3, 60, 2), (25_000, 1e-3, 30, 8), (25_000, 1e-3, 100, 8),
    (25_000, 2e-3, 100, 4), (50_000, 5e-4, 60, 8), (50_000, 1e-3, 60, 8), (50_000, 2e-3, 60, 8),
    (50_000, 1e-3, 200, 8), (50_000, 2e-3, 200, 8), (50_000, 1e-3, 400, 8),
)  # fmt: skip


@app.command()
def main(
    target: Annotated[Path, typer.Option(help="model directory")],
    turbo: Annotated[Path, typer.Option(help="checkpoint directory")],
    jobs_file: Annotated[Path, typer.Option("--jobs", help="file made by `turbo jobs`")],
    out: Annotated[Path, typer.Option(help="JSON file to write")],
    seconds: Annotated[float, typer.Option(help="stop starting runs after this long")] = 150.0,
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
) -> None:
    """Sample each tenant's traffic, train adapters over a grid, report probe tau of turbo and adapter."""
    begun = time.monotonic()
    llama = Llama.from_directory(target, device, torch.bfloat16 if device != "cpu" else torch.float32)
    runner = Runner(llama, compiled=False)
    head = load_turbo(turbo, llama.embedding.float(), device=device)
    rows = llama.output[head.draft_token_ids.to(device)].float()
    sets = load_jobs(jobs_file)
    data = {}
    results: dict[str, Any] = {}
    for name in TENANTS:
        if f"traffic.{name}" not in sets:
            continue
        traffic = answers(runner, head, sets[f"traffic.{name}"], device, rows=512)
        probe = answers(runner, head, sets[f"evaluate.{name}"], device)
        data[name] = (traffic, probe)
        results[name] = {
            "traffic_tokens": sum(item.queries for item in traffic),
            "turbo": score(head, None, probe),
            "runs": [],
        }
        print(name, json.dumps(results[name]), f"{time.monotonic() - begun:.0f} s", flush=True)
    for tokens, rate, steps, per_step in GRID:
        for name, (traffic, probe) in data.items():
            if time.monotonic() - begun > seconds:
                break
            part = take(traffic, tokens)
            start = time.monotonic()
            adapter = train_adapter(head, part, rows, rate=rate, steps=steps, rows=per_step)
            took = time.monotonic() - start
            found = score(head, adapter, probe)
            run = {"tokens": sum(i.queries for i in part), "rate": rate, "steps": steps, "rows": per_step,
                   "seconds": round(took, 1), "tau": found["tau"], "tau_96": found["tau_96"],
                   "acceptance_per_position": found["acceptance_per_position"]}  # fmt: skip
            results[name]["runs"].append(run)
            print(name, json.dumps(run), flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app()
