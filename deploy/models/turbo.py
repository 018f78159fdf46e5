"""Command line of the recipe: `python -m deploy.models.turbo jobs|train|evaluate` (see README.md)."""

from __future__ import annotations

import json
import time
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import Annotated, Any

import torch
import typer

from adaptive.speculator.checkpoint import fingerprint, load_turbo, save_turbo
from adaptive.speculator.config import SpeculatorConfig
from deploy.models.generate import Job, Text, generate
from deploy.models.jobs import fit, load_jobs
from deploy.models.llama import Llama, Runner
from deploy.models.measure import measure
from deploy.models.rows import FeatureStore, Rows, pack, target_features
from deploy.models.train import Schedule, Trainer, compile_for_training, fresh_head

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
SLOTS = 512
LENGTH = 512
Device = Annotated[str, typer.Option(help="cuda or cpu")]


class Clock:
    """Seconds per stage, printed as they pass."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self.stages: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End the current stage."""
        now = time.monotonic()
        self.stages[name] = round(now - self._last, 1)
        self._last = now
        print(f"[{now - self._begun:6.1f} s] {name}: {self.stages[name]} s", flush=True)


@app.command()
def jobs(
    target: Annotated[Path, typer.Option(help="model directory made by `adaptive models prepare`")],
    out: Annotated[Path, typer.Option(help="file to write")],
    count: Annotated[int, typer.Option(help="training conversations")] = 140_000,
    evaluation: Annotated[int, typer.Option(help="prompts per evaluation set")] = 200,
    tenants: Annotated[bool, typer.Option(help="add the tenant workloads, for evaluation only")] = True,
) -> None:
    """Tokenise the prompts (needs transformers; no GPU)."""
    from transformers import AutoTokenizer  # noqa: PLC0415  # slow import

    from deploy.models import jobs as prompts  # noqa: PLC0415
    from deploy.models.tenants import tenant_jobs  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(target)
    sets = {"train": prompts.training_jobs(tokenizer, count)}
    broad = prompts.broad_evaluation(tokenizer, evaluation)
    sets["evaluate.broad"] = [Job(ids, prompts.EVALUATION_LIMIT, 0.0) for ids in broad]
    if tenants:
        sets |= tenant_jobs(tokenizer, evaluation)
    prompts.save_jobs(out, sets)
    print({name: len(items) for name, items in sets.items()})


@app.command()
def train(
    target: Annotated[Path, typer.Option(help="model directory")],
    jobs_file: Annotated[Path, typer.Option("--jobs", help="file made by `jobs`")],
    out: Annotated[Path, typer.Option(help="checkpoint directory to write")],
    steps: Annotated[int, typer.Option(help="optimiser steps over all shards")] = 10_000,
    shards: Annotated[int, typer.Option(help="parts of the text whose features fit the device at once")] = 2,
    rows: Annotated[int, typer.Option(help="sequences decoded at once")] = 2048,
    limit: Annotated[int, typer.Option(help="use only the first N conversations (0: all)")] = 0,
    rows_per_step: Annotated[int, typer.Option(help="packed rows of 512 a step")] = 48,
    rate: Annotated[float, typer.Option(help="peak learning rate")] = 1e-3,
    draft_vocabulary: Annotated[int, typer.Option(help="rows of the drafter's LM head")] = 16_384,
    seed: Annotated[int, typer.Option(help="of weights, sampling and order")] = 0,
    device: Device = "cuda",
) -> None:
    """Generate text, precompute features, train, write the checkpoint and its training.json."""
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    clock = Clock()
    config = speculator_config(target, draft_vocabulary)
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    llama = Llama.from_directory(target, device, dtype)
    runner = Runner(llama, compiled=device != "cpu")
    sets = load_jobs(jobs_file)
    work = [fit(job, SLOTS) for job in (sets["train"][:limit] if limit else sets["train"])]
    clock.lap("load")
    text = generate(runner, work, rows=rows, length=LENGTH, end=2, device=device)
    _free(device)
    clock.lap("generate")
    generator = torch.Generator().manual_seed(seed)
    packed = pack(text, SLOTS, device, generator)
    draft_ids, coverage = choose_vocabulary(text, config)
    print(
        f"  {packed.source.shape[0]} rows, fill {packed.fill:.3f}, {packed.queries} draft positions, "
        f"coverage {coverage:.4f}"
    )
    clock.lap("pack")
    head = fresh_head(config, llama, draft_ids, seed)
    if device != "cpu":
        compile_for_training(head)
    schedule = Schedule(
        steps=steps, rows_per_step=rows_per_step, learning_rate=rate, warmup=min(200, steps // 10 + 1)
    )
    trainer = Trainer(head, llama.output[draft_ids.to(device)], schedule, seed)
    scale = feature_scale(packed, runner, config)
    parts = torch.arange(packed.source.shape[0], device=device).chunk(shards)
    share = steps // len(parts)
    for number, part in enumerate(parts):
        store = FeatureStore(packed, part, runner, config.feature_layers, scale)
        _free(device)
        clock.lap(f"features {number + 1}")
        trainer.run(store, share if number + 1 < len(parts) else steps - trainer.step)
        del store
        _free(device)
        clock.lap(f"train {number + 1}")
    sha = save_turbo(out, config, trainer.state(scale))
    report: dict[str, Any] = {
        "turbo_sha256": sha,
        "target_sha256": fingerprint(target),
        "conversations": len(work),
        "answer_tokens": text.answer_tokens,
        "draft_positions": packed.queries,
        "row_fill": round(packed.fill, 4),
        "draft_vocabulary_coverage_train": round(coverage, 5),
        "steps": steps,
        "mean_positions_per_step": packed.queries / packed.source.shape[0] * rows_per_step,
        "schedule": {
            "learning_rate": rate,
            "depth": schedule.depth,
            "decay": schedule.decay,
            "rows": rows_per_step,
        },
        "seconds": clock.stages,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "curve": trainer.curve,
    }
    (out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"  wrote {out} {sha}", flush=True)


@app.command()
def evaluate(
    target: Annotated[Path, typer.Option(help="model directory")],
    turbo: Annotated[Path, typer.Option(help="checkpoint directory")],
    jobs_file: Annotated[Path, typer.Option("--jobs", help="file made by `jobs`")],
    out: Annotated[Path, typer.Option(help="JSON file to write")],
    limit: Annotated[int, typer.Option(help="prompts per set (0: all)")] = 0,
    device: Device = "cuda",
) -> None:
    """Walked tau on greedy answers of every evaluation set."""
    llama = Llama.from_directory(target, device, torch.bfloat16 if device != "cpu" else torch.float32)
    runner = Runner(llama, compiled=False)
    head = load_turbo(turbo, llama.embedding.float(), device=device)
    results = {}
    for name, items in load_jobs(jobs_file).items():
        if name.startswith("evaluate."):
            results[name] = measure(runner, head, items[:limit] if limit else items, device)
            print(
                name, {key: value for key, value in results[name].items() if key != "histogram"}, flush=True
            )
            out.write_text(json.dumps(results, indent=1) + "\n")


def speculator_config(target: Path, draft_vocabulary: int) -> SpeculatorConfig:
    """A head of one layer in the target's own shape; features from layers 2, n/2 and n-3, vLLM's defaults."""
    raw = json.loads((target / "config.json").read_text())
    count = raw["num_hidden_layers"]
    rope = raw.get("rope_parameters") or {}
    return SpeculatorConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw["num_key_value_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        vocab_size=raw["vocab_size"],
        draft_vocab_size=draft_vocabulary,
        rms_norm_eps=1e-5,
        rope_theta=rope.get("rope_theta", raw.get("rope_theta", 10000.0)),
        max_position_embeddings=raw["max_position_embeddings"],
        target_hidden_size=raw["hidden_size"],
        feature_layers=(2, count // 2, count - 3),
    )


def choose_vocabulary(text: Text, config: SpeculatorConfig) -> tuple[torch.Tensor, float]:
    """The most frequent chosen tokens: sorted ids [draft_vocab_size] and the share of tokens they cover."""
    counts = torch.bincount(text.tokens[text.sampled].long(), minlength=config.vocab_size)
    ids = counts.argsort(descending=True, stable=True)[: config.draft_vocab_size].sort().values
    return ids, float(counts[ids].sum() / counts.sum())


def feature_scale(rows: Rows, runner: Runner, config: SpeculatorConfig) -> torch.Tensor:
    """Root mean square of every feature dimension over a sample of rows: float32 [L*H]."""
    part = torch.arange(min(64, rows.source.shape[0]), device=rows.source.device)
    features, _ = target_features(rows, part, runner, config.feature_layers)
    kept = features[rows.segment[part] >= 0].float()
    return kept.square().mean(0).sqrt().clamp(min=1e-4)


def _free(device: str) -> None:
    if device != "cpu":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    app()
