"""Benchmark `traces`: what the trace path carries, and what it costs the engine.

Verify steps per second from the publisher's queue into the log and from the log into the learner's ledger, on
both transports; microseconds of the engine's thread per verify step; memory while the log stands still.
Records are those of short requests: 40 verify steps of 4 drafts each.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive.contracts import (
    TOPIC_TENANT_CHANGED,
    TOPIC_TRACE_RECORDED,
    Arm,
    SamplingSummary,
    TenantChanged,
    encode,
)
from adaptive.engine.capture import TracePublisher
from adaptive.engine.config import CaptureConfig, EngineConfig
from adaptive.engine.recorder import Fingerprints, RequestRecorder
from adaptive.engine.request import RequestPlan
from collectors.consumer import TraceConsumer
from collectors.open import open_transport
from collectors.publisher import Publisher
from collectors.state import CompactedView
from collectors.store import TensorStore
from collectors.transport import OutgoingRecord
from learners.features import Assembler
from learners.intake import Intake
from learners.ledger import Ledger
from learners.replay import Replay
from tests.bench import result, traffic
from tests.bench.logs import TRANSPORTS, fresh_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TENANTS = 8
STALLED_QUEUE = 64 << 20


def publish(url: str, scratch: Path, count: int) -> dict[str, float]:
    """From `publish_trace` to a log that has everything."""
    store = TensorStore(f"file://{scratch}/store")
    publisher = Publisher(lambda: open_transport(url), store, 1 << 30)
    publisher.publish_trace(next(traffic.records(1, 1, first=10_000_000)))
    _flush(publisher)  # the log is open
    made = list(traffic.records(count, TENANTS))
    began, busy = time.perf_counter(), time.process_time()
    for record in made:
        publisher.publish_trace(record)
    _flush(publisher)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    statistics = publisher.statistics()
    publisher.close()
    if (statistics.published, statistics.dropped) != (count + 1, 0):
        raise RuntimeError(f"{count} records, but {statistics}")
    return {"verify steps/s": count * traffic.STEPS / seconds, "cores": busy / seconds}


def consume(url: str, scratch: Path, count: int) -> dict[str, float]:
    """From the log to offsets that are committed behind the ledger: decode, check, deduplicate, enter."""
    transport = open_transport(url)
    for tenant in range(TENANTS):
        name = f"tenant-{tenant}"
        transport.send(TOPIC_TENANT_CHANGED, name, encode(traffic.account(name)))
    transport.flush(60)
    ledger = Ledger(scratch / "ledger.db")
    source = TraceConsumer(transport, "learners")
    intake = Intake(
        source,
        CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged),
        ledger,
        Replay(scratch / "replay"),
        Assembler(TensorStore(f"file://{scratch}/store"), (1,), 4, None),
        target_sha256=traffic.TARGET,
        feature_source="bench",
    )
    while not source.lag():  # joining the group is not measured
        intake.poll(0.1)
    for first in range(0, count, 1000):
        # Requests that go on: nothing of them is assembled, which is not what is measured here.
        made = traffic.records(min(1000, count - first), TENANTS, first=first, finished=False)
        transport.send_many([OutgoingRecord(TOPIC_TRACE_RECORDED, one.tenant, encode(one)) for one in made])
    transport.flush(60)
    seen, began, busy = 0, time.perf_counter(), time.process_time()
    while seen < count:
        seen += intake.poll(0.1)
        if time.perf_counter() - began > 120:
            raise RuntimeError(f"{count} traces, but {intake.report()}")
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    report = intake.report()
    intake.close()
    ledger.close()
    transport.close()
    if (report.traces, report.duplicates) != (count, 0):
        raise RuntimeError(f"{count} traces, but {report}")
    return {"verify steps/s": count * traffic.STEPS / seconds, "cores": busy / seconds}


def record_steps(url: str, scratch: Path, count: int) -> dict[str, float]:
    """The engine's thread: note 40 steps, cut, hand over; while the publisher works in the background."""
    config = EngineConfig(
        slots=2, rank=2, lookahead=4, target_sha256=traffic.TARGET, turbo_sha256="2" * 64,
        tokenizer_sha256="3" * 64, feature_layers=(1,),
    )  # fmt: skip
    publisher = TracePublisher(config, CaptureConfig(url, f"file://{scratch}/store", 1 << 30))
    draw = random.Random(0)  # noqa: S311  # reproducible on purpose
    steps, _ = traffic.verify_steps(draw)
    emitted = [[*step.drafted[: step.accepted], 7] for step in steps]
    prompt = list(range(100))
    fingerprints = Fingerprints(traffic.TARGET, "2" * 64, "3" * 64)
    plan = RequestPlan("tenant", Arm.ADAPTER, learn=True)
    sampling = SamplingSummary()
    began, busy = time.perf_counter(), time.thread_time()
    for number in range(count):
        recorder = RequestRecorder(
            plan, str(number), prompt, sampling, fingerprints, frozenset({2}).__contains__
        )
        for step, tokens in zip(steps, emitted, strict=True):
            recorder.step(Arm.ADAPTER, 3, step.drafted, tokens, step.confidences)
        publisher.publish(recorder.cut(finished=True))
    wall, busy = time.perf_counter() - began, time.thread_time() - busy
    publisher.flush(120)
    publisher.close()
    per_step = 1e6 / (count * traffic.STEPS)
    return {"us per verify step": busy * per_step, "us per verify step, waits included": wall * per_step}


def stalled(scratch: Path, count: int) -> dict[str, float]:
    """Memory of a process whose log takes nothing, with a queue of 64 MiB."""
    never = threading.Event()

    def hang() -> Any:
        never.wait()
        raise RuntimeError("ended")

    gc.collect()
    before = _resident()
    publisher = Publisher(hang, TensorStore(f"file://{scratch}/store"), STALLED_QUEUE)
    most = 0
    for number, record in enumerate(traffic.records(count, TENANTS)):
        publisher.publish_trace(record)
        if number % 1000 == 0:
            most = max(most, _resident())
    statistics = publisher.statistics()
    never.set()
    publisher.close(0.1)
    if statistics.queue_bytes > STALLED_QUEUE or statistics.dropped == 0:
        raise RuntimeError(f"the queue was never full: {statistics}")
    return {"resident MiB more": (most - before) / (1 << 20), "queue MiB": statistics.queue_bytes / (1 << 20)}


PARTS: dict[str, Callable[[str, Path, int], dict[str, float]]] = {
    "publisher": publish,
    "consumer": consume,
    "engine": record_steps,
}


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="traces", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), choices=TRANSPORTS)
    options = parser.parse_args(arguments)
    cells: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as directory,
        fresh_logs(Path(directory), tuple(options.transports)) as make,
    ):
        variants = [(part, transport) for transport in options.transports for part in PARTS]
        variants.append(("stalled log", ""))
        for number in range(-1, options.rounds):  # round -1 warms up
            turn = (number + 1) % len(variants)
            for part, transport in variants[turn:] + variants[:turn]:
                name = f"{part}, {transport}" if transport else part
                scratch = Path(directory) / f"{name.replace(' ', '-')}-{number}"
                scratch.mkdir()
                if transport:
                    cell = PARTS[part](make(transport), scratch, options.records)
                else:
                    cell = stalled(scratch, 8 * options.records)
                print(f"round {number} {name}: {cell}", flush=True)  # noqa: T201  progress
                if number >= 0:
                    cells[name].append(cell)
    return result.write(
        "traces", "make bench NAME=traces", _variants(cells), _ratios(cells, options), _notes(options)
    )


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _flush(publisher: Publisher) -> None:
    if not publisher.flush(300):
        raise RuntimeError(f"the log did not take everything: {publisher.statistics()}")


def _variants(cells: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        name: {measure: result.spread([cell[measure] for cell in rounds]) for measure in rounds[0]}
        for name, rounds in cells.items()
    }


def _ratios(cells: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> dict[str, Any]:
    return {
        f"{role} of {transport} over the goal of 50,000 verify steps/s": result.ratios(
            [cell["verify steps/s"] for cell in cells[f"{role}, {transport}"]], [50_000.0] * options.rounds
        )
        for transport in options.transports
        for role in ("publisher", "consumer")
    }


def _notes(options: argparse.Namespace) -> str:
    return (
        f"{options.records} records of {traffic.STEPS} verify steps with {traffic.DRAFTS} drafts per round, "
        f"{TENANTS} tenants, {options.rounds} rounds after one of warm-up; publisher and consumer each "
        "alone, the Kafka broker on the same cores and not counted in `cores`. The consumer's figure "
        "includes the ledger, the engine's a publisher that works meanwhile."
    )
