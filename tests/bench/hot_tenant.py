"""Benchmark `hot_tenant`: 64 tenants, one of them 100 times as busy, on one learner.

Requests are written to the log faster than the learner can assemble them; lag is the time from a request's
record in the log to its sequence in the replay. "alone" is the cold tenants without the hot one, "beside" is
with it, "in order of arrival" the same without turns and without leaving anything out. Assembling is made to
take `--work` milliseconds of waiting per request, as recomputing features on an accelerator does.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from adaptive.contracts import TOPIC_TENANT_CHANGED, TOPIC_TRACE_RECORDED, TenantChanged, encode
from collectors.consumer import TraceConsumer
from collectors.open import open_transport
from collectors.state import CompactedView
from collectors.store import TensorStore
from collectors.transport import OutgoingRecord
from learners.fairness import FairQueue, Waiting
from learners.features import Assembler
from learners.intake import Intake
from learners.ledger import Ledger
from learners.replay import Replay
from tests.bench import result, traffic
from tests.bench.logs import TRANSPORTS, fresh_logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.speculator.sequences import TracedSequence
    from collectors.transport import Transport

COLD = 63
HOT = "hot"
TIMES = 100


class TimedReplay(Replay):
    """A replay that notes when a request arrives in it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.arrived: dict[str, list[float]] = defaultdict(list)

    def save(self, tenant: str, number: int, sequence: TracedSequence) -> None:
        """Store a sequence and note the time."""
        super().save(tenant, number, sequence)
        self.arrived[tenant].append(time.time())


class Writer:
    """Appends requests at a steady rate from a thread of its own."""

    def __init__(self, transport: Transport, *, rate: float, seconds: float, hot: bool) -> None:
        self.sent: dict[str, list[float]] = defaultdict(list)
        self._transport = transport
        self._rate, self._seconds, self._hot = rate, seconds, hot
        self._models = list(traffic.records(100, 1))
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        """Every tick each cold tenant sends `rate * tick` requests, the hot one a hundred times as many."""
        tick, began, number = 0.1, time.monotonic(), 0
        due: defaultdict[str, float] = defaultdict(float)
        while (elapsed := time.monotonic() - began) < self._seconds:
            batch = []
            for tenant in [*(f"cold-{index}" for index in range(COLD)), *([HOT] if self._hot else [])]:
                due[tenant] += self._rate * tick * (TIMES if tenant == HOT else 1)
                while due[tenant] >= 1:
                    due[tenant] -= 1
                    number += 1
                    batch.append(self._record(tenant, number))
            self._transport.send_many(batch)
            self._transport.flush(30)
            now = time.time()
            for record in batch:
                self.sent[record.key].append(now)
            time.sleep(max(0.0, tick - (time.monotonic() - began - elapsed)))

    def _record(self, tenant: str, number: int) -> OutgoingRecord:
        model = self._models[number % len(self._models)]
        # No text twice: the replay would leave it out.
        record = msgspec.structs.replace(
            model,
            trace_id=f"{tenant}-{number}:0",
            tenant=tenant,
            request_id=f"{tenant}-{number}",
            prompt_ids=[number % 49_000, number // 49_000, *model.prompt_ids[2:]],
        )
        return OutgoingRecord(TOPIC_TRACE_RECORDED, tenant, encode(record))


class OrderOfArrival(FairQueue):
    """What intake would be without turns."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, tenant: str, number: int) -> None:
        """Append a request."""
        self._requests.append(Waiting(tenant, number, time.monotonic()))

    def next(self) -> Waiting | None:
        """Take the oldest request."""
        return self._requests.popleft() if self._requests else None


VARIANTS = {"alone": False, "beside": True, "in order of arrival": True}
"""Whether the hot tenant is there."""


def measure(url: str, scratch: Path, options: argparse.Namespace, variant: str) -> dict[str, float]:
    """Lag of the cold tenants' requests, and what became of the hot one's."""
    transport = open_transport(url)
    for name in (HOT, *(f"cold-{index}" for index in range(COLD))):
        transport.send(TOPIC_TENANT_CHANGED, name, encode(traffic.account(name)))
    transport.flush(30)

    def recompute(token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(options.work / 1e3)
        rows = len(token_ids)
        return torch.zeros(rows, 4), torch.zeros(rows, 4)

    ledger, replay = Ledger(scratch / "ledger.db"), TimedReplay(scratch / "replay")
    intake = Intake(
        TraceConsumer(transport, "learners"),
        CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged),
        ledger,
        replay,
        Assembler(TensorStore(f"file://{scratch}/store"), (1,), 4, recompute),
        target_sha256=traffic.TARGET,
        feature_source="bench",
        queue=OrderOfArrival() if variant == "in order of arrival" else None,
    )
    hot = VARIANTS[variant]
    for _ in range(20):
        intake.poll(0.1)  # joins the group
    writer = Writer(open_transport(url), rate=options.rate, seconds=options.seconds, hot=hot)
    writer.thread.start()
    while writer.thread.is_alive() or intake.report().waiting:
        intake.poll(0.05)
    for _ in range(20):
        intake.poll(0.05)
    writer.thread.join()
    left_out = {tenant: sum(each.left_out.values()) for tenant, each in ledger.tenants().items()}
    for tenant, sent in writer.sent.items():
        if len(replay.arrived[tenant]) + left_out.get(tenant, 0) != len(sent):
            raise RuntimeError(
                f"{tenant}: {len(sent)} sent, {len(replay.arrived[tenant])} arrived, {left_out}"
            )
    intake.close()
    ledger.close()
    transport.close()
    cold = [
        arrived - sent
        for tenant in writer.sent
        if tenant != HOT
        for sent, arrived in zip(writer.sent[tenant], replay.arrived[tenant], strict=True)
    ]
    cell = {
        "cold lag p50 s": _quantile(cold, 0.5),
        "cold lag p99 s": _quantile(cold, 0.99),
        "cold lag most s": max(cold),
    }
    if hot:
        cell["hot requests/s sent"] = len(writer.sent[HOT]) / options.seconds
        cell["hot requests/s learned"] = len(replay.arrived[HOT]) / options.seconds
        cell["hot left out %"] = 100 * left_out.get(HOT, 0) / len(writer.sent[HOT])
    return cell


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="hot_tenant", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second of each cold tenant")
    parser.add_argument("--work", type=float, default=5.0, help="milliseconds per request")
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), choices=TRANSPORTS)
    options = parser.parse_args(arguments)
    cells: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as directory,
        fresh_logs(Path(directory), tuple(options.transports)) as make,
    ):
        variants = [(transport, variant) for transport in options.transports for variant in VARIANTS]
        for number in range(options.rounds):
            turn = number % len(variants)
            for transport, variant in variants[turn:] + variants[:turn]:
                name = f"{variant}, {transport}"
                scratch = Path(directory) / f"{name.replace(' ', '-')}-{number}"
                scratch.mkdir()
                cell = measure(make(transport), scratch, options, variant)
                print(f"round {number} {name}: {cell}", flush=True)  # noqa: T201  progress
                cells[name].append(cell)
    return result.write(
        "hot_tenant", "make bench NAME=hot_tenant", _variants(cells), _ratios(cells, options), _notes(options)
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _variants(cells: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        name: {measure: result.spread([cell[measure] for cell in rounds]) for measure in rounds[0]}
        for name, rounds in cells.items()
    }


def _ratios(cells: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> dict[str, Any]:
    return {
        f"cold lag p99 {variant} over alone, {transport}": result.ratios(
            [cell["cold lag p99 s"] for cell in cells[f"{variant}, {transport}"]],
            [cell["cold lag p99 s"] for cell in cells[f"alone, {transport}"]],
        )
        for transport in options.transports
        for variant in ("beside", "in order of arrival")
    }


def _notes(options: argparse.Namespace) -> str:
    return (
        f"{COLD} tenants at {options.rate:g} requests/s each and one at {options.rate * TIMES:g}, for "
        f"{options.seconds:g} s; each request takes {options.work:g} ms to assemble, so one learner manages "
        f"less than {1e3 / options.work:.0f} requests/s. Lag from the log to the replay."
    )
