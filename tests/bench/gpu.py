"""One GPU: engines of an 8B shape side by side, the kernel against its roofline, exactness, swaps under load.

Needs CUDA vLLM; CI does not run it. Each engine is a process that reads commands from standard input, so that
a failing one costs only its own numbers. The 8B target has dummy weights; acceptance is vLLM's synthetic one
at the rates measured on the small model (docs/benchmarks/learning.json), so the
speed is real, the text is not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

DRAFTS: Final = 3
CONCURRENCIES: Final = (1, 8, 32, 128, 256)
SHAPE: Final = {"hidden": 4096, "intermediate": 14336, "query": 4096}
RANK: Final = 16
SLOTS: Final = 65
SHA: Final = "0" * 64
BANDWIDTH: Final = 4.8e12
"""Bytes per second of an H200's memory, by its data sheet."""


def rates(tau: float, drafts: int, measured_drafts: int = 4) -> list[float]:
    """Unconditional acceptance per position of a constant conditional rate that gives `tau` tokens a step."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(middle**i for i in range(measured_drafts + 1)) < tau else (low, middle)
        )
    return [low ** (i + 1) for i in range(drafts)]


def adaptive_section() -> dict[str, Any]:
    """Our part of the additional config."""
    from adaptive.engine.config import EngineConfig  # noqa: PLC0415

    return EngineConfig(
        slots=SLOTS,
        rank=RANK,
        lookahead=DRAFTS,
        target_sha256=SHA,
        turbo_sha256=SHA,
        tokenizer_sha256=SHA,
        feature_layers=(2, 16, 29),
    ).to_additional_config()


def write_adapters(directory: Path, names: list[tuple[str, int]], head: Path, scale: float) -> list[str]:
    """One random adapter for a head, under several names (tenant, version); returns the files."""
    import torch  # noqa: PLC0415

    from adaptive.speculator.adapter import AdapterConfig, AdapterMetadata, save_adapter  # noqa: PLC0415
    from adaptive.speculator.config import SpeculatorConfig  # noqa: PLC0415

    directory.mkdir(exist_ok=True)
    shapes = AdapterConfig(rank=RANK).shapes(SpeculatorConfig.from_directory(head))
    tensors = {name: torch.randn(shape) * scale for name, shape in shapes.items()}
    files = []
    for tenant, version in names:
        file = directory / f"{tenant}-{version}.safetensors"
        metadata = AdapterMetadata(tenant, version, RANK, SHA, SHA, "2026-12-01T00:00:00Z")
        save_adapter(file, tensors, metadata)
        files.append(str(file))
    return files


class Engine:
    """One vLLM engine of this process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Start it; `settings` are keyword arguments of `vllm.LLM`, with `ours` for the plugin."""
        from vllm import LLM  # noqa: PLC0415

        ours = settings.pop("ours", False)
        if ours:
            from adaptive.engine import plugin  # noqa: PLC0415

            plugin.register()
            settings |= {
                "worker_cls": "adaptive.engine.v2.worker.AdaptiveGPUWorker",
                "additional_config": adaptive_section(),
            }
        self.llm = LLM(**settings)
        self.ids = itertools.count()

    def params(self, tokens: int, tenant: str | None) -> Any:
        """Greedy sampling, with a plan that asks for a tenant's adapter."""
        from vllm import SamplingParams  # noqa: PLC0415

        extra = (
            {"adaptive_tenant": tenant, "adaptive_arm": "adapter", "adaptive_learn": 0, "adaptive_share": 0}
            if tenant is not None
            else None
        )
        return SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra
        )

    def generate(self, prompts: list[list[int]], tokens: int, tenants: int = 0) -> dict[str, Any]:
        """Run one batch to its end; request i belongs to tenant i mod `tenants`."""
        params = [self.params(tokens, f"t{i % tenants}" if tenants else None) for i in range(len(prompts))]
        started = time.perf_counter()
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
        )
        seconds = time.perf_counter() - started
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        return {"seconds": seconds, "tokens": sum(map(len, ids)), "ids": ids}

    def commit(self, tenant: str, version: int, path: str, *, move: bool = True) -> dict[str, Any]:
        """Stage and commit one adapter."""
        rpc = self.llm.collective_rpc
        rpc("stage_adapter", args=(tenant, version, path))
        while (state := rpc("staged_adapter", args=(tenant, version))[0])[0] == "loading":
            time.sleep(0.001)
        if state[0] != "ready":
            raise RuntimeError(f"{tenant} v{version}: {state}")
        started = time.perf_counter()
        result = rpc("commit_adapter", args=(tenant, version, 1.0, move))[0]
        return dict(result) | {"rpc_ms": (time.perf_counter() - started) * 1e3}

    def swaps(self, files: list[str], concurrency: int, tokens: int) -> dict[str, Any]:
        """Swap a tenant's adapter between steps while requests of it run."""
        swaps = len(files)
        engine = self.llm.llm_engine
        rnd = random.Random(3)  # noqa: S311  prompts
        want = concurrency
        for _ in range(want):
            prompt = {"prompt_token_ids": [rnd.randrange(10, 40000) for _ in range(64)]}
            engine.add_request(f"s{next(self.ids)}", prompt, self.params(tokens, "t0"))
        finished = whole = step = done = 0
        pauses, rpcs, errors = [], [], 0
        while engine.has_unfinished_requests() or done < swaps:
            if not engine.has_unfinished_requests():
                for _ in range(concurrency):
                    prompt = {"prompt_token_ids": [rnd.randrange(10, 40000) for _ in range(64)]}
                    engine.add_request(f"s{next(self.ids)}", prompt, self.params(tokens, "t0"))
                    want += 1
            for output in engine.step():
                if output.finished:
                    finished += 1
                    whole += len(output.outputs[0].token_ids) == tokens
            step += 1
            if step % 3 == 0 and done < swaps:
                result = self.commit("t0", 1000 + done, files[done])
                done += 1
                if "error" in result:
                    errors += 1
                else:
                    pauses.append(result["pause_ms"])
                    rpcs.append(result["rpc_ms"])
        return {
            "pauses_ms": pauses, "rpc_ms": rpcs, "refused": errors, "requests": want, "whole": whole,
        }  # fmt: skip


def engine_main(settings: dict[str, Any]) -> None:
    """Serve commands: a JSON line in, a JSON line out, on the real standard output."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(value: Any) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    try:
        started = time.perf_counter()
        engine = Engine(settings)
        reply({"loaded": time.perf_counter() - started})
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        reply({"error": repr(error)[:500]})
        return
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            reply(getattr(engine, name)(**arguments))
        except BaseException as error:  # noqa: BLE001
            traceback.print_exc()
            reply({"error": repr(error)[:500]})


class Remote:
    """An engine in a process of its own."""

    def __init__(self, name: str, settings: dict[str, Any], logs: Path) -> None:
        """Start it without waiting."""
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--engine", json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(logs / f"{name}.log").open("w"), text=True,
        )  # fmt: skip

    def read(self) -> dict[str, Any]:
        """The next reply.

        Raises:
            RuntimeError: the engine failed.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        value: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in value:
            raise RuntimeError(f"{self.name}: {value['error']}")
        return value

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Run a method there."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([method, arguments]) + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self) -> None:
        """End it."""
        self.process.kill()


def kernel() -> dict[str, Any]:
    """Time and error of one module's delta, in a replayed graph, for rows of as many tenants."""
    import torch  # noqa: PLC0415

    from adaptive.engine.v2 import low_rank  # noqa: PLC0415

    variants: dict[str, Any] = {}
    for name, features_in, features_out in (
        ("q", 8192, 4096), ("o", 4096, 4096), ("gate", 4096, 14336), ("down", 14336, 4096),
    ):  # fmt: skip
        a = (torch.randn(SLOTS, RANK, features_in, device="cuda") / 64).bfloat16()
        b = (torch.randn(SLOTS, features_out, RANK, device="cuda") / 4).bfloat16()
        weight = torch.ones(SLOTS, device="cuda")
        for rows, adapted in ((1, 1), (8, 8), (64, 64), (256, 256), (1024, 256), (1024, 0)):
            x = torch.randn(rows, features_in, device="cuda").bfloat16()
            out = torch.randn(rows, features_out, device="cuda").bfloat16()
            slots = torch.zeros(rows, dtype=torch.int32, device="cuda")
            slots[:adapted] = torch.arange(adapted, device="cuda", dtype=torch.int32) % (SLOTS - 1) + 1
            before = out.clone()
            low_rank.add(out, x, a, b, weight, slots, 0)
            index = slots.long()
            hidden = torch.einsum("nri,ni->nr", a[index].double(), x.double())
            delta = torch.einsum("nor,nr->no", b[index].double(), hidden) * (slots > 0)[:, None]
            exact = before.double() + delta
            error = ((out.double() - exact).norm() / exact.norm()).item()
            untouched = bool(torch.equal(out[adapted:], before[adapted:]))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(20):
                    low_rank.add(out, x, a, b, weight, slots, 0)
            times = []
            for _ in range(15):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * 1e3 / 20)
            used = min(adapted, SLOTS - 1)
            moved = 2 * (
                used * RANK * (features_in + features_out) + adapted * (features_in + 2 * features_out)
            )
            floor = moved / BANDWIDTH * 1e6
            micros = sorted(times[3:])
            median = statistics.median(micros)
            variants[f"kernel {name}, {rows} rows, {adapted} adapted"] = {
                "microseconds": {"median": median, "min": micros[0], "max": micros[-1]},
                "microseconds at 4.8 TB/s": {"median": floor, "min": floor, "max": floor},
                "relative error against float64, 1e-3": dict.fromkeys(
                    ("median", "min", "max"), error * 1000.0
                ),
                "other rows untouched": {k: float(untouched) for k in ("median", "min", "max")},
            }
    return variants


def base_settings(concurrency: int) -> dict[str, Any]:
    """What all 8B engines share."""
    sizes = sorted({(1 + DRAFTS) * c for c in (1, 2, 4, 8, 16, 32, 64, 128, 256)} | {1, 2, 8, 16, 32})
    return {
        "max_model_len": 1024, "max_num_seqs": concurrency, "gpu_memory_utilization": 0.2,
        "kv_cache_memory_bytes": 11 << 30, "enable_prefix_caching": False, "skip_tokenizer_init": True,
        "seed": 0, "disable_log_stats": True, "max_num_batched_tokens": 8192,
        "compilation_config": {"cudagraph_capture_sizes": sizes, "max_cudagraph_capture_size": max(sizes)},
    }  # fmt: skip


def synthetic(head: str, tau: float) -> dict[str, Any]:
    """Speculative config of K = 3 drafts at measured acceptance."""
    return {
        "method": "eagle3", "model": head, "num_speculative_tokens": DRAFTS,
        "draft_load_config": {"load_format": "auto"}, "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": rates(tau, DRAFTS),
    }  # fmt: skip


def speed(arguments: argparse.Namespace, out: Path) -> None:  # noqa: C901
    """The four variants interleaved, then overheads and swaps; every result is kept as it comes."""
    rows = (out / "speed.jsonl").open("a")

    def keep(**row: Any) -> None:
        rows.write(json.dumps(row) + "\n")
        rows.flush()

    head, target = arguments.head, arguments.target
    base = base_settings(256) | {"model": target, "load_format": "dummy"}
    turbo, adapted = arguments.turbo_tau, arguments.adapted_tau
    engines = {
        "none": Remote("none", dict(base), out),
        "stock": Remote("stock", base | {"speculative_config": synthetic(head, turbo)}, out),
        "turbo": Remote("turbo", base | {"speculative_config": synthetic(head, turbo), "ours": True}, out),
        "adapted": Remote(
            "adapted", base | {"speculative_config": synthetic(head, adapted), "ours": True}, out
        ),
    }
    for name, engine in list(engines.items()):
        try:
            keep(engine=name, **engine.read())
        except RuntimeError as error:
            keep(engine=name, failed=str(error))
            engine.close()
            del engines[name]
    directory = Path("/tmp/bench_adapters")  # noqa: S108
    resident = [(f"t{i}", 1) for i in range(SLOTS - 1)]
    files = write_adapters(directory, resident, Path(head), 0.02)
    versions = write_adapters(directory, [("t0", 1000 + i) for i in range(200)], Path(head), 0.02)
    tenants = {"adapted": 1}
    if "adapted" in engines:
        keep(commit=engines["adapted"].call("commit", tenant="t0", version=1, path=files[0]))
    rnd = random.Random(1)  # noqa: S311  prompts

    def cell(name: str, concurrency: int, tokens: int, tenant_count: int) -> dict[str, Any]:
        prompts = [[rnd.randrange(10, 40000) for _ in range(64)] for _ in range(concurrency)]
        made = engines[name].call("generate", prompts=prompts, tokens=tokens, tenants=tenant_count)
        del made["ids"]
        return made

    for concurrency in CONCURRENCIES:
        for name in engines:
            cell(name, concurrency, 24, tenants.get(name, 0))
        for round_number in range(arguments.rounds):
            for name in engines:
                tokens = 256 if concurrency < 128 else 128
                made = cell(name, concurrency, tokens, tenants.get(name, 0))
                keep(variant=name, concurrency=concurrency, round=round_number, **made)
    if "adapted" in engines:
        for i in range(1, SLOTS - 1):
            engines["adapted"].call("commit", tenant=f"t{i}", version=1, path=files[i])
        for round_number in range(arguments.rounds):
            for count in (0, 1, 64):
                made = cell("adapted", 64, 192, count)
                keep(overhead=f"{count} tenants' adapters drafting", round=round_number, **made)
        engine = engines["adapted"]
        keep(swaps=engine.call("swaps", files=versions, concurrency=32, tokens=192))
    for engine in engines.values():
        engine.close()


def exact(arguments: argparse.Namespace, out: Path) -> None:
    """Greedy outputs of a float32 target with and without speculation, adapters and swaps."""
    rnd = random.Random(5)  # noqa: S311  prompts
    prompts = [[rnd.randrange(10, 40000) for _ in range(48)] for _ in range(16)]
    base = {
        "model": arguments.small, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 16, "seed": 0,
        "gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 2 << 30, "skip_tokenizer_init": True,
        "max_num_batched_tokens": 2048,
    }  # fmt: skip
    speculative = {
        "method": "eagle3", "model": arguments.small_head, "num_speculative_tokens": DRAFTS,
    }  # fmt: skip
    plain = Remote("exact_plain", dict(base), out)
    ours = Remote("exact_ours", base | {"speculative_config": speculative, "ours": True}, out)
    result: dict[str, Any] = {}
    try:
        plain.read()
        expected = plain.call("generate", prompts=prompts, tokens=96)["ids"]
        ours.read()
        got = ours.call("generate", prompts=prompts, tokens=96)["ids"]
        result["turbo, equal answers"] = sum(a == b for a, b in zip(got, expected, strict=True))
        directory = Path("/tmp/bench_small")  # noqa: S108
        names = [("t0", version) for version in (1, 2, 3)]
        files = write_adapters(directory, names, Path(arguments.small_head), 0.2)
        for version in (1, 2, 3):
            result[f"commit {version}"] = ours.call(
                "commit", tenant="t0", version=version, path=files[version - 1]
            )
            got = ours.call("generate", prompts=prompts, tokens=96, tenants=2)["ids"]
            result[f"adapter v{version} beside turbo, equal answers"] = sum(
                a == b for a, b in zip(got, expected, strict=True)
            )
        result["answers"] = len(expected)
    except RuntimeError as error:
        result["error"] = str(error)
    (out / "exact.json").write_text(json.dumps(result, indent=1))
    plain.close()
    ours.close()


def main() -> None:
    """Run stages; each leaves its own file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine")
    parser.add_argument("--stages", default="kernel,exact,speed")
    parser.add_argument("--out", default=".")
    parser.add_argument("--target", default="/tmp/l8")  # noqa: S108
    parser.add_argument("--head", default="/tmp/e_l8")  # noqa: S108
    parser.add_argument("--small", default="/tmp/smol")  # noqa: S108
    parser.add_argument("--small-head", default="/tmp/e_smol")  # noqa: S108
    parser.add_argument("--turbo-tau", type=float, default=2.11)
    parser.add_argument("--adapted-tau", type=float, default=3.25)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.engine:
        engine_main(json.loads(arguments.engine))
        return
    out = Path(arguments.out)
    for stage in arguments.stages.split(","):
        try:
            if stage == "kernel":
                (out / "kernel.json").write_text(json.dumps(kernel()))
            elif stage == "exact":
                exact(arguments, out)
            else:
                speed(arguments, out)
        except Exception:  # noqa: BLE001  the other stages must still run
            traceback.print_exc()
            (out / f"{stage}.failed").write_text(traceback.format_exc())


if __name__ == "__main__":
    main()
