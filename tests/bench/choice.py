"""Benchmark `choice`: the choice per step against the adapter alone, and turbo, on seven workloads.

All variants run in one engine, in turn. Each workload is a tenant of its own with an adapter trained on its
recorded traffic (cached under .adaptive/choice/adapters); its traffic is served first, which fills the
tenant's history and calibration, then its probe prompts are measured. Every variant is a tenant of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from adaptive.speculator.adapter import AdapterMetadata, load_adapter, save_adapter
from adaptive.speculator.checkpoint import load_turbo
from adaptive.speculator.config import SpeculatorConfig
from adaptive.speculator.sequences import TracedSequence
from adaptive.speculator.target import compute_features, embedding_table, load_target, output_rows
from adaptive.workloads import WORKLOADS, load
from deploy.models.recordings import ADAPTER_RATE, ADAPTER_TEMPERATURE
from deploy.models.tenants import train_adapter
from tests.bench import engines, result
from tests.bench.load import measure
from tests.bench.recordings import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.engine_process import EngineProcess

TEMPERATURES = (0.0, 0.7, 1.0)
TURBO, ADAPTER, CHOICE = "turbo", "adapter alone", "choice per step"
VARIANTS = (TURBO, ADAPTER, CHOICE)
ADAPTERS = result.ROOT / ".adaptive" / "choice" / "adapters"
TRAINED_ON, STEPS, ROWS = 120, 40, 4
Cell = tuple[str, str, float]


def trained(workloads: Sequence[str]) -> None:
    """Train the adapters that are not cached yet (minutes each on two cores)."""
    missing = [name for name in workloads if not (ADAPTERS / f"{name}.safetensors").is_file()]
    if not missing:
        return
    model = load_target(engines.target())
    head = load_turbo(engines.TURBO, embedding_table(model).float())
    rows = output_rows(model)[head.draft_token_ids].float()
    ADAPTERS.mkdir(parents=True, exist_ok=True)
    for name in missing:
        sequences = []
        for request in read(name, "traffic", ADAPTER_TEMPERATURE)[:TRAINED_ON]:
            tokens = torch.tensor([*request.prompt, *request.answer])
            features, last = compute_features(model, tokens[None], head.config.feature_layers)
            sequences.append(TracedSequence(tokens, len(request.prompt), 0, features[0], last[0]))
        adapter = train_adapter(head, sequences, rows, rate=ADAPTER_RATE, steps=STEPS, rows=ROWS)
        metadata = AdapterMetadata(name, 1, adapter.config.rank, "target", "turbo", "1970-01-01T00:00:00Z")
        save_adapter(ADAPTERS / f"{name}.safetensors", adapter.tensors(), metadata)
        print(f"trained {name}", flush=True)  # noqa: T201  progress


def commit(engine: EngineProcess, tenant: str, cached: Path, scratch: Path) -> None:
    """Put a cached adapter in service for a tenant, under that tenant's name."""
    tensors, metadata = load_adapter(cached, SpeculatorConfig.from_directory(engines.TURBO))
    path = scratch / f"{tenant.replace('/', '-').replace(' ', '-')}.safetensors"
    save_adapter(path, tensors, dataclasses.replace(metadata, tenant=tenant))
    engine.call("stage_adapter", tenant, 1, str(path))
    while engine.call("staged_adapter", tenant, 1)[0] == "loading":
        pass
    outcome = engine.call("commit_adapter", tenant, 1, 1.0)
    if "error" in outcome:
        raise RuntimeError(outcome["error"])


def plan(variant: str, workload: str) -> RequestPlan:
    """Turbo and the adapter alone draft as they are served without the n-gram arm."""
    arm = Arm.TURBO if variant == TURBO else Arm.ADAPTER
    return RequestPlan(tenant=f"{workload}/{variant}", arm=arm, ngram=variant == CHOICE)


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="choice", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=6, help="per workload, temperature and round")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--warm", type=int, default=48, help="traffic requests per workload, variant and T")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="one short round, for a check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.prompts, options.tokens, options.warm = 1, 1, 24, 2
    trained(options.workloads)
    cells: dict[Cell, list[dict[str, float]]] = defaultdict(list)
    engine = engines.adaptive(16)
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.workloads:
            for variant in (ADAPTER, CHOICE):
                commit(engine, f"{name}/{variant}", ADAPTERS / f"{name}.safetensors", Path(scratch))
            _serve_workload(engine, name, options, cells)
    engine.close()
    return result.write("choice", "make bench NAME=choice", _variants(cells), _ratios(cells), str(__doc__))


def _serve_workload(
    engine: EngineProcess, name: str, options: argparse.Namespace, cells: dict[Cell, list[dict[str, float]]]
) -> None:
    traffic = [list(prompt.messages) for prompt in load(name).traffic[: options.warm]]
    for variant, temperature in itertools.product(VARIANTS, TEMPERATURES):
        measure(engine, plan(variant, name), traffic, 16, options.tokens, temperature)
    print(f"warmed up {name}", flush=True)  # noqa: T201  progress
    probe = itertools.cycle([list(prompt.messages) for prompt in load(name).probe])
    for number in range(options.rounds):
        batch = list(itertools.islice(probe, options.prompts))
        for place, temperature in enumerate(TEMPERATURES):
            turn = (number + place) % len(VARIANTS)
            for variant in VARIANTS[turn:] + VARIANTS[:turn]:
                cell = _measure(engine, variant, name, temperature, batch, options.tokens)
                print(f"round {number} {variant}, {name}, T = {temperature}: {cell}", flush=True)  # noqa: T201  progress
                cells[variant, name, temperature].append(cell)


def _measure(
    engine: EngineProcess, variant: str, name: str, temperature: float, batch: Sequence[Any], tokens: int
) -> dict[str, float]:
    before = _steps(engine, f"{name}/{variant}")
    rate = measure(engine, plan(variant, name), batch, 1, tokens, temperature)
    steps, accepted = (
        now - then for now, then in zip(_steps(engine, f"{name}/{variant}"), before, strict=True)
    )
    return {"tokens/s": rate, "tau": 1 + accepted / max(steps, 1)}


def _steps(engine: EngineProcess, tenant: str) -> tuple[int, int]:
    rows = [row for row in engine.call("adapter_info")["counters"] if row["tenant"] == tenant]
    steps, accepted = (sum(row.get(field, 0) for row in rows) for field in ("verify_steps", "accepted"))
    return steps, accepted


def _variants(cells: dict[Cell, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        f"{variant}, {name}, T = {temperature}": {
            measured: result.spread([cell[measured] for cell in rounds]) for measured in rounds[0]
        }
        for (variant, name, temperature), rounds in cells.items()
    }


def _ratios(cells: dict[Cell, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        f"tokens/s of {CHOICE} over {other}, {name}, T = {temperature}": result.ratios(
            [cell["tokens/s"] for cell in rounds],
            [cell["tokens/s"] for cell in cells[other, name, temperature]],
        )
        for (variant, name, temperature), rounds in cells.items()
        if variant == CHOICE
        for other in (ADAPTER, TURBO)
    }
