"""Benchmark `log_faults`: tokens/s of an engine that records every request while its log is in trouble.

One engine writes to Kafka, one to the embedded log. In every round each serves with the log well and under
each of its faults, in rotating order: the broker frozen (SIGSTOP) or killed; the embedded log locked by
another process, or its disk full (the engine's files may not grow), which hits the feature store too. After
each fault the log comes back, and every request that was recorded must arrive: none is dropped or left.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import resource
import sqlite3
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive.contracts import Arm
from adaptive.engine.config import CaptureConfig
from adaptive.engine.request import RequestPlan
from adaptive.kafka_settings import KafkaSettings
from collectors.kafka.address import KafkaAddress
from collectors.kafka.topics import KafkaTopicAdmin
from collectors.topics import topic_specs
from tests.bench import engines, result
from tests.bench.load import mixed
from tests.bench.logs import bench_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from deploy.kafka.broker import Broker
    from tests.bench.engine_process import EngineProcess

CONCURRENCY = 4
QUEUE_BYTES = 256 << 20
WELL = "log well"
PLAN = RequestPlan(tenant="bench", arm=Arm.TURBO, learn=True, features=True, ngram=False)
"""Without copies of earlier answers: every variant of a round gets the same prompts."""


class Capturing:
    """An engine, its log's faults, and the check that its traces arrive."""

    def __init__(self, log_url: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        capture = CaptureConfig(log_url, f"file://{directory}/store", QUEUE_BYTES)
        self.engine: EngineProcess = engines.adaptive(CONCURRENCY, capture)
        self.faults: dict[str, Callable[[], AbstractContextManager[None]]] = {WELL: contextlib.nullcontext}

    def rate(self, fault: str, prompts: Sequence[list[dict[str, str]]], tokens: int) -> float:
        """Tokens per second while the log has a fault; returns once it has none and took everything."""
        made = seconds = 0.0
        with self.faults[fault]():
            for first in range(0, len(prompts), CONCURRENCY):
                answer = self.engine.generate(
                    list(prompts[first : first + CONCURRENCY]),
                    max_tokens=tokens,
                    extra_args=PLAN.to_extra_args(),
                )
                made += answer["tokens"]
                seconds += answer["seconds"]
            during = self._capture()
        if not self.engine.call("flush_traces", 120.0):
            raise RuntimeError(f"{fault}: the log is back and did not take everything: {self._capture()}")
        after = self._capture()
        if after["dropped"] or after["queue_depth"]:
            raise RuntimeError(f"{fault}: traces were lost: {after}")
        if fault != WELL and after["published"] == during["published"]:
            raise RuntimeError(f"{fault}: nothing had to wait, so the fault was none: {during}")
        return made / seconds

    def _capture(self) -> dict[str, Any]:
        found: dict[str, Any] = self.engine.call("adapter_info")["capture"]
        return found


def on_kafka(broker: Broker, directory: Path) -> Capturing:
    """An engine whose log is a broker."""
    url = f"kafka://{broker.address}"
    with KafkaTopicAdmin(KafkaAddress.parse(url), KafkaSettings()) as admin:
        admin.create(topic_specs())
    found = Capturing(url, directory)

    @contextlib.contextmanager
    def frozen() -> Iterator[None]:
        broker.freeze()
        try:
            yield
        finally:
            broker.thaw()

    @contextlib.contextmanager
    def killed() -> Iterator[None]:
        broker.kill()
        try:
            yield
        finally:
            broker.start()

    return _with(found, {"broker frozen": frozen, "broker killed": killed})


def on_embedded(directory: Path) -> Capturing:
    """An engine whose log is a file."""
    path = directory / "log.db"
    found = Capturing(f"sqlite:///{path}", directory)

    @contextlib.contextmanager
    def locked() -> Iterator[None]:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.close()

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        processes = list(_family(found.engine.pid))
        _limit_files(processes, 4096)
        try:
            yield
        finally:
            _limit_files(processes, resource.RLIM_INFINITY)

    return _with(found, {"log locked": locked, "disk full": full})


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON. RuntimeError where a fault costs too much (`--least`)."""
    parser = argparse.ArgumentParser(prog="log_faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=12, help="per variant and round")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--least", type=float, default=0.95, help="median ratio to a log that is well")
    parser.add_argument("--quick", action="store_true", help="one short round, for a check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.prompts, options.tokens, options.least = 1, 4, 24, 0.0
    cells: defaultdict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    prompts = (
        [{"role": message["role"], "content": message["content"]} for message in prompt] for prompt in mixed()
    )
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        broker = bench_broker(Path(scratch) / "broker")
        broker.start()
        stack.callback(broker.kill)
        running = {"Kafka": on_kafka(broker, Path(scratch) / "kafka")}
        stack.callback(running["Kafka"].engine.close)
        running["embedded"] = on_embedded(Path(scratch) / "embedded")
        stack.callback(running["embedded"].engine.close)
        variants = [(log, fault) for log, capturing in running.items() for fault in capturing.faults]
        for number in range(-1, options.rounds):  # round -1 warms up
            turn = (number + 1) % len(variants)
            batch = list(itertools.islice(prompts, options.prompts))
            for log, fault in variants[turn:] + variants[:turn]:
                rate = running[log].rate(fault, batch, options.tokens)
                print(f"round {number} {log}, {fault}: {rate:.1f} tokens/s", flush=True)  # noqa: T201  progress
                if number >= 0:
                    cells[log][fault].append(rate)
    path = result.write(
        "log_faults",
        result.command("log_faults", arguments),
        {
            f"{log}, {fault}": {"tokens/s": result.spread(rates)}
            for log, faults in cells.items()
            for fault, rates in faults.items()
        },
        {
            f"tokens/s with {fault} over {WELL}, {log}": result.ratios(rates, faults[WELL])
            for log, faults in cells.items()
            for fault, rates in faults.items()
            if fault != WELL
        },
        f"SmolLM2-135M-Instruct in bfloat16, eager, {CONCURRENCY} requests at once, {options.tokens} new "
        f"tokens each, every request recorded with its features, the same {options.prompts} prompts for "
        f"every variant of a round, {options.rounds} rounds after one of warm-up. After every fault all "
        "traces arrived.",
    )
    for log, faults in cells.items():
        for fault, rates in faults.items():
            ratio = statistics.median(a / b for a, b in zip(rates, faults[WELL], strict=True))
            if ratio < options.least:
                raise RuntimeError(f"{log}, {fault}: {ratio:.3f} of the tokens/s with a log that is well")
    return path


def _with(capturing: Capturing, faults: dict[str, Callable[[], AbstractContextManager[None]]]) -> Capturing:
    capturing.faults |= faults
    return capturing


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _limit_files(processes: Sequence[int], size: int) -> None:
    """Let files of these processes grow to `size` bytes only; Python ignores the signal and sees EFBIG."""
    for pid in processes:
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))
