"""Benchmark `loop`: what speculation gains and what the plugin costs, at concurrency 1 and 4.

Three engines stand side by side (no speculation, stock vLLM EAGLE-3, the plugin) and are driven in turn, the
order rotating from round to round. The adapter's values are negligible, so that only its cost shows, not its
acceptance.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from adaptive.contracts import Arm
from adaptive.engine.config import CaptureConfig, EngineConfig
from adaptive.engine.request import RequestPlan
from adaptive.models import prepare
from adaptive.speculator.adapter import Adapter, AdapterConfig, AdapterMetadata, save_adapter
from adaptive.speculator.config import SpeculatorConfig
from adaptive.workloads import load
from tests.bench import result
from tests.bench.engine_process import EngineProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKLOADS = ("chat", "tools", "code")
RANK = 32
LOOKAHEAD = 4
CONCURRENCIES = (1, 4)


def engines(target: Path, turbo: Path, home: Path) -> dict[str, EngineProcess]:
    """The three engines."""
    common: dict[str, Any] = {
        "model": str(target),
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 1 << 30,
        "disable_log_stats": False,
        "seed": 0,
    }
    speculative = {"method": "eagle3", "model": str(turbo), "num_speculative_tokens": LOOKAHEAD}
    config = EngineConfig(
        slots=8,
        rank=RANK,
        lookahead=LOOKAHEAD,
        target_sha256="target",
        turbo_sha256="turbo",
        tokenizer_sha256="tokenizer",
        feature_layers=SpeculatorConfig.from_directory(turbo).feature_layers,
        capture=CaptureConfig(f"sqlite:///{home}/log.db", f"file://{home}/store", 64 << 20),
    )
    return {
        "none": EngineProcess(plugin=False, **common),
        "stock": EngineProcess(plugin=False, **common, speculative_config=speculative),
        "plugin": EngineProcess(
            plugin=True,
            **common,
            speculative_config=speculative,
            worker_cls="adaptive.engine.worker.AdaptiveCPUWorker",
            scheduler_cls="adaptive.engine.scheduler.AdaptiveScheduler",
            additional_config=config.to_additional_config(),
        ),
    }


def commit_adapter(engine: EngineProcess, turbo: Path, home: Path, tenant: str = "bench") -> None:
    """Put an adapter of negligible values in service for a tenant."""
    adapter = Adapter(AdapterConfig(rank=RANK), SpeculatorConfig.from_directory(turbo))
    for name, tensor in adapter.tensors().items():
        if name.endswith(".B"):
            tensor.copy_(1e-6 * torch.randn(tensor.shape))
    path = home / f"{tenant}-1.safetensors"
    save_adapter(
        path, adapter.tensors(), AdapterMetadata(tenant, 1, RANK, "target", "turbo", "1970-01-01T00:00:00Z")
    )
    engine.call("stage_adapter", tenant, 1, str(path))
    while engine.call("staged_adapter", tenant, 1)[0] == "loading":
        pass
    outcome = engine.call("commit_adapter", tenant, 1, 1.0)
    if "error" in outcome:
        raise RuntimeError(outcome["error"])


VARIANTS: dict[str, tuple[str, Arm, bool]] = {
    "no speculation": ("none", Arm.OFF, False),
    "stock EAGLE-3": ("stock", Arm.TURBO, False),
    "plugin, off arm": ("plugin", Arm.OFF, False),
    "plugin, slot 0": ("plugin", Arm.TURBO, False),
    "plugin, adapter": ("plugin", Arm.ADAPTER, False),
    "plugin, adapter, capture": ("plugin", Arm.ADAPTER, True),
}
"""Variant -> (engine, arm, capture)."""


def measure(
    engine: EngineProcess, arm: Arm, *, capture: bool, prompts: list[Any], concurrency: int, tokens: int
) -> dict[str, float]:
    """One cell: all prompts, `concurrency` at a time."""
    plan = RequestPlan(tenant="bench", arm=arm, learn=capture, features=capture, fixed=True)
    total: defaultdict[str, float] = defaultdict(float)
    for first in range(0, len(prompts), concurrency):
        answer = engine.generate(
            prompts[first : first + concurrency], max_tokens=tokens, extra_args=plan.to_extra_args()
        )
        for key, value in answer.items():
            total[key] += value
    return {
        "tokens/s": total["tokens"] / total["seconds"],
        "tau": 1 + total["accepted"] / total["drafts"] if total["drafts"] else 1.0,
    }


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="loop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=2, help="per workload")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    target = prepare("smollm2-135m", result.ROOT / ".adaptive")
    turbo = result.ROOT / "deploy" / "turbo" / "smollm2-135m"
    cells: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        running = engines(target, turbo, home)
        commit_adapter(running["plugin"], turbo, home)
        names = list(VARIANTS)
        for number in range(-1, options.rounds):  # round -1 warms up
            prompts = [
                prompt.messages
                for workload in WORKLOADS
                for prompt in _slice(load(workload).traffic, number + 1, options.prompts)
            ]
            for concurrency in CONCURRENCIES:
                turn = (number + 1) % len(names)
                for name in names[turn:] + names[:turn]:
                    engine, arm, capture = VARIANTS[name]
                    cell = measure(
                        running[engine],
                        arm,
                        capture=capture,
                        prompts=prompts,
                        concurrency=concurrency,
                        tokens=options.tokens,
                    )
                    print(f"round {number} concurrency {concurrency} {name}: {cell}", flush=True)  # noqa: T201  progress
                    if number >= 0:
                        cells[name, concurrency].append(cell)
        for process in running.values():
            process.close()
    return result.write("loop", "make bench NAME=loop", _variants(cells), _ratios(cells), _notes(options))


def _slice(prompts: Sequence[Any], number: int, count: int) -> Sequence[Any]:
    first = number * count % len(prompts)
    return prompts[first : first + count]


def _variants(cells: dict[tuple[str, int], list[dict[str, float]]]) -> dict[str, Any]:
    return {
        f"{name}, concurrency {concurrency}": {
            measure: result.spread([cell[measure] for cell in rounds]) for measure in ("tokens/s", "tau")
        }
        for (name, concurrency), rounds in cells.items()
    }


def _ratios(cells: dict[tuple[str, int], list[dict[str, float]]]) -> dict[str, Any]:
    pairs = (
        ("stock EAGLE-3", "no speculation"),
        ("plugin, slot 0", "no speculation"),
        ("plugin, off arm", "no speculation"),
        ("plugin, slot 0", "stock EAGLE-3"),
        ("plugin, adapter", "plugin, slot 0"),
        ("plugin, adapter, capture", "plugin, adapter"),
    )
    return {
        f"tokens/s of {a} over {b}, concurrency {concurrency}": result.ratios(
            [cell["tokens/s"] for cell in cells[a, concurrency]],
            [cell["tokens/s"] for cell in cells[b, concurrency]],
        )
        for a, b in pairs
        for concurrency in CONCURRENCIES
    }


def _notes(options: argparse.Namespace) -> str:
    return (
        f"SmolLM2-135M-Instruct in bfloat16, eager, greedy, {options.prompts} prompts each of "
        f"{', '.join(WORKLOADS)} per round, {options.tokens} new tokens, K = {LOOKAHEAD}, "
        f"{options.rounds} rounds after one of warm-up, vLLM's default of one thread on "
        "two cores. The adapter's values are negligible: "
        "only its cost shows. Capture records every request with its features."
    )
