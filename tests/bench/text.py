"""Tenants' text for the learning benchmarks: the target's own answers to every workload's prompts.

Traffic is sampled at T = 0.7 over the traffic prompts in turn; the probe is greedy. Files hold token ids,
grow in blocks, and are gone on with, so a run may end at any time:
`python -m tests.bench.text --workloads idioma,tools --requests 1000`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from adaptive.models import prepare
from adaptive.workloads import Workload, load
from tests.bench import result
from tests.bench.engine_process import EngineProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adaptive.workloads import Prompt

NEAR: Final = ("tools", "code", "math")
FAR: Final = ("idioma", "format")
DIRECTORY: Final = result.ROOT / ".adaptive" / "learning" / "text"
TEMPERATURE: Final = 0.7
BLOCK: Final = 96


class Text(msgspec.Struct, frozen=True, array_like=True):
    """One answered request."""

    prompt: list[int]
    answer: list[int]


def workload(name: str) -> Workload:
    """A workload's prompts; "tuned" are those of "format" without examples, for a target that learned."""
    if name != "tuned":
        return load(name)
    plain = load("format")
    return Workload(name, *(tuple(map(_bare, side)) for side in (plain.traffic, plain.probe)))


def _bare(prompt: Prompt) -> Prompt:
    return dataclasses.replace(prompt, messages=prompt.messages[-1:])


def turbo_directory() -> Path:
    """The shipped turbo."""
    return result.ROOT / "deploy" / "turbo" / "smollm2-135m"


def target_directory(name: str = "") -> Path:
    """The prepared target; for workload "tuned" the one that tests/bench/tuned.py made of it."""
    target = prepare("smollm2-135m", result.ROOT / ".adaptive")
    return target.with_name(f"{target.name}-tuned-100") if name == "tuned" else target


def read(name: str, side: str, target: str = "smollm2-135m") -> list[Text]:
    """What was generated so far of a workload's `traffic` or `probe`.

    Raises:
        SystemExit: nothing was.
    """
    path = _path(name, side, target)
    if not path.is_file():
        raise SystemExit(f"{path} is missing: run `python -m tests.bench.text --workloads {name}`")
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Text])


def extend(
    engine: EngineProcess, prompts: Sequence[Prompt], count: int, path: Path, temperature: float
) -> None:
    """Bring a file to `count` requests, over the prompts in turn."""
    found = msgspec.msgpack.decode(path.read_bytes(), type=list[Text]) if path.is_file() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    while len(found) < count:
        began = time.monotonic()
        numbers = range(len(found), min(count, len(found) + BLOCK))
        chosen = [prompts[number % len(prompts)] for number in numbers]
        answers = engine.sample(
            [
                [{"role": one["role"], "content": one["content"]} for one in prompt.messages]
                for prompt in chosen
            ],
            [prompt.max_tokens for prompt in chosen],
            temperature,
        )
        found += [Text(prompt, answer) for prompt, answer in answers]
        partial = path.with_suffix(".partial")
        partial.write_bytes(msgspec.msgpack.encode(found))
        partial.replace(path)
        rate = sum(len(answer) for _, answer in answers) / (time.monotonic() - began)
        print(f"{path.stem}: {len(found)} of {count} requests, {rate:.0f} tokens/s", flush=True)  # noqa: T201  progress


def main() -> int:
    """Generate what is asked for and not yet there."""
    parser = argparse.ArgumentParser(prog="text", description=__doc__)
    parser.add_argument("--workloads", default=",".join(FAR + NEAR))
    parser.add_argument("--requests", type=int, default=1000, help="of traffic, per workload")
    parser.add_argument("--probe", type=int, default=48, help="probe requests, per workload")
    parser.add_argument("--target", help="model directory (default: the prepared SmolLM2)")
    options = parser.parse_args()
    target = result.ROOT / options.target if options.target else target_directory()
    engine = EngineProcess(
        plugin=False,
        model=str(target),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=BLOCK,
        kv_cache_memory_bytes=2 << 30,
        seed=0,
    )
    for name in options.workloads.split(","):
        prompts = workload(name)
        probe = prompts.probe[: options.probe]
        extend(engine, probe, len(probe), _path(name, "probe", target.name), 0.0)
        extend(engine, prompts.traffic, options.requests, _path(name, "traffic", target.name), TEMPERATURE)
    engine.close()
    return 0


def _path(workload: str, side: str, target: str) -> Path:
    return DIRECTORY / target / f"{workload}-{side}.msgpack"


if __name__ == "__main__":
    sys.exit(main())
