"""What the benchmarks `slots` and `capture` share: one engine, variants of its requests in turn."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive.engine.config import CaptureConfig, EngineConfig
from adaptive.models import prepare
from adaptive.speculator.config import SpeculatorConfig
from adaptive.workloads import load
from tests.bench import result
from tests.bench.engine_process import EngineProcess
from tests.bench.loop import LOOKAHEAD, RANK, WORKLOADS, commit_adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from adaptive.engine.request import RequestPlan

CONCURRENCY = 8
TEMPERATURES = (0.0, 0.7, 1.0)


def options(name: str, text: str | None, arguments: Sequence[str]) -> argparse.Namespace:
    """Rounds and tokens; --quick is one short round."""
    parser = argparse.ArgumentParser(prog=name, description=text)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--quick", action="store_true", help="one round of 16 tokens")
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.rounds, parsed.tokens = 1, 16
    return parsed


def compare(
    name: str,
    variants: Mapping[str, Callable[[int], Sequence[RequestPlan]]],
    parsed: argparse.Namespace,
    *,
    tenants: Sequence[str],
    notes: str,
) -> Path:
    """Run every variant at every temperature in every round, in rotating order; ratios to the first variant.

    Args:
        name: of the benchmark.
        variants: name -> plans of a round's CONCURRENCY requests, by the number of the batch.
        parsed: `options`.
        tenants: whose adapters (of negligible values: only their cost shows) are resident.
        notes: what the variants mean.
    """
    target = prepare("smollm2-135m", result.ROOT / ".adaptive")
    turbo = result.ROOT / "deploy" / "turbo" / "smollm2-135m"
    cells: defaultdict[tuple[str, float], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        engine = _engine(target, turbo, home, len(tenants) + 1)
        for tenant in tenants:
            commit_adapter(engine, turbo, home, tenant)
        names = list(variants)
        batches = itertools.count()
        for number in range(-1, parsed.rounds):  # round -1 warms up
            prompts = _prompts(number + 1)
            for temperature in TEMPERATURES:
                turn = (number + 1) % len(names)
                for variant in names[turn:] + names[:turn]:
                    plans = variants[variant](next(batches))
                    answer = engine.generate(
                        prompts,
                        max_tokens=parsed.tokens,
                        temperature=temperature,
                        extra_args=[plan.to_extra_args() for plan in plans],
                    )
                    speed = answer["tokens"] / answer["seconds"]
                    print(f"round {number} T={temperature} {variant}: {speed:.1f} tokens/s", flush=True)  # noqa: T201  progress
                    if number >= 0:
                        cells[variant, temperature].append(speed)
        engine.close()
    first = names[0]
    return result.write(
        name,
        f"make bench NAME={name}",
        {
            f"{variant}, T = {temperature}": {"tokens/s": result.spread(speeds)}
            for (variant, temperature), speeds in cells.items()
        },
        {
            f"tokens/s of {variant} over {first}, T = {temperature}": result.ratios(
                cells[variant, temperature], cells[first, temperature]
            )
            for variant in names[1:]
            for temperature in TEMPERATURES
        },
        f"SmolLM2-135M-Instruct in bfloat16, eager, {CONCURRENCY} requests at once, {parsed.tokens} new "
        f"tokens each, always {LOOKAHEAD} drafts per verify step, rank {RANK}, {parsed.rounds} rounds after "
        f"one of warm-up. {notes}",
    )


def _engine(target: Path, turbo: Path, home: Path, slots: int) -> EngineProcess:
    config = EngineConfig(
        slots=slots,
        rank=RANK,
        lookahead=LOOKAHEAD,
        target_sha256="target",
        turbo_sha256="turbo",
        tokenizer_sha256="tokenizer",
        feature_layers=SpeculatorConfig.from_directory(turbo).feature_layers,
        capture=CaptureConfig(f"sqlite:///{home}/log.db", f"file://{home}/store", 256 << 20),
    )
    return EngineProcess(
        plugin=True,
        model=str(target),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=CONCURRENCY,
        kv_cache_memory_bytes=1 << 30,
        disable_log_stats=False,
        seed=0,
        speculative_config={"method": "eagle3", "model": str(turbo), "num_speculative_tokens": LOOKAHEAD},
        worker_cls="adaptive.engine.worker.AdaptiveCPUWorker",
        scheduler_cls="adaptive.engine.scheduler.AdaptiveScheduler",
        additional_config=config.to_additional_config(),
    )


def _prompts(number: int) -> list[Any]:
    found: list[Any] = []
    for workload in itertools.islice(itertools.cycle(WORKLOADS), CONCURRENCY):
        traffic = load(workload).traffic
        found.append(traffic[(number * CONCURRENCY + len(found)) % len(traffic)].messages)
    return found
