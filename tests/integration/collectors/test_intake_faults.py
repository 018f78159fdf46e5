"""From the publisher to the learner's ledger while records, disks and tenants misbehave.

After each fault: what the log accepted is used once, nothing else is, and the counters add up.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from adaptive import contracts
from adaptive.contracts import TOPIC_TENANT_CHANGED, TOPIC_TRACE_RECORDED, TenantChanged
from collectors.consumer import TraceConsumer
from collectors.features import FeatureMeta
from collectors.publisher import Publisher
from collectors.safetensors import TensorData
from collectors.sqlite import SqliteTransport
from collectors.state import CompactedView
from collectors.store import TensorStore
from learners.features import Assembler
from learners.intake import MOST_WAITING, Intake
from learners.ledger import Ledger
from learners.replay import Replay
from tests.bench import traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collectors.transport import LogRecord, Transport
    from tests.integration.collectors.conftest import Log

DEAD_LETTERS = TOPIC_TRACE_RECORDED + contracts.DEAD_LETTER_SUFFIX


class Learner:
    """Intake, ledger and replay of one learner; requests are assembled with made-up features."""

    def __init__(self, transport: Transport, home: Path, work: float = 0.0) -> None:
        self.ledger = Ledger(home / "ledger.db")
        self.order: list[str] = []
        replay = Replay(home / "replay")
        save = replay.save

        def noted(tenant: str, number: int, sequence: Any) -> None:
            self.order.append(tenant)
            save(tenant, number, sequence)

        replay.save = noted  # type: ignore[method-assign]  # a spy

        def recompute(token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            time.sleep(work)
            return torch.zeros(len(token_ids), 4), torch.zeros(len(token_ids), 4)

        self.intake = Intake(
            TraceConsumer(transport, "learners"),
            CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged),
            self.ledger,
            replay,
            Assembler(TensorStore(f"file://{home}/store"), (1,), 4, recompute),
            target_sha256=traffic.TARGET,
            feature_source="test",
        )

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Poll until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.intake.report()
            self.intake.poll(0.1)

    def close(self) -> None:
        """End."""
        self.intake.close()
        self.ledger.close()


def consent(transport: Transport, *tenants: str) -> None:
    """Let tenants be learned from."""
    for tenant in tenants:
        transport.send(TOPIC_TENANT_CHANGED, tenant, contracts.encode(traffic.account(tenant)))
    transport.flush(10)


def requests(count: int, tenant: str, first: int = 0) -> Iterator[contracts.TraceRecord]:
    """Requests of one segment, no text twice."""
    models = list(traffic.records(20, 1))
    for number in range(first, first + count):
        model = models[number % 20]
        yield msgspec.structs.replace(
            model,
            trace_id=f"{tenant}-{number}:0",
            tenant=tenant,
            request_id=f"{tenant}-{number}",
            prompt_ids=[number, *model.prompt_ids[1:]],
        )


def features_of(record: contracts.TraceRecord) -> tuple[dict[str, TensorData], FeatureMeta]:
    """Rows of zeros for every token but the last."""
    rows = record.prompt_length + len(record.output_ids) - 1
    meta = FeatureMeta(feature_start=0, rows=rows, dtype="float32", feature_layers=(1,), hidden_size=4)
    data = TensorData("F32", (rows, 4), bytes(16 * rows))
    return {"features": data, "last_hidden": data}, meta


def everything(transport: Transport, topic: str) -> list[LogRecord]:
    """All records of a topic."""
    reader = transport.consumer([topic], None)
    records = []
    while any(reader.lag().values()):
        records += reader.poll(0.2)
    reader.close()
    return records


def test_poison_between_traces_costs_only_itself(log: Log, tmp_path: Path) -> None:
    """Corrupt records and newer ones that cannot be read are put aside once; a newer one that can is used."""
    transport = log.open()
    consent(transport, "acme")
    good = [contracts.encode(one) for one in requests(6, "acme")]
    newer = msgspec.msgpack.decode(good[5])
    good[5] = msgspec.msgpack.encode({**newer, "schema_version": 2, "field_of_later": {"a": [1]}})
    flipped = bytearray(good[0])
    flipped[len(flipped) // 2 :] = os.urandom(len(flipped) - len(flipped) // 2)
    poison = [
        b"\xc1",
        bytes(flipped),
        msgspec.msgpack.encode({**newer, "schema_version": 3, "steps": "elsewhere"}),
        contracts.encode(next(requests(1, "somebody", 99))),
    ]
    for value in (*good[:2], *poison[:2], *good[2:], *poison[2:], good[0]):
        transport.send(TOPIC_TRACE_RECORDED, "acme", value)
    transport.flush(10)
    first = Learner(transport, tmp_path)
    first.until(lambda: len(first.order) == 6 and first.intake.report().duplicates == 1)
    report = first.intake.report()
    assert (report.traces, report.waiting, report.excess) == (7, 0, 0)
    assert first.ledger.tenants()["acme"].requests == 6
    assert "somebody" not in first.ledger.tenants()
    first.close()
    letters = everything(transport, DEAD_LETTERS)
    assert Counter(letter.value for letter in letters) == Counter(poison)
    reasons = {letter.value: letter.headers["x-error"].decode() for letter in letters}
    assert "schema version 3 is newer than 1" in reasons[poison[2]]
    assert "'somebody' under the key of 'acme'" in reasons[poison[3]]
    again = Learner(log.open(), tmp_path)
    transport.send(TOPIC_TRACE_RECORDED, "acme", contracts.encode(next(requests(1, "acme", 6))))
    transport.flush(10)
    again.until(lambda: len(again.order) == 1)
    assert (again.intake.report().traces, again.intake.report().duplicates) == (1, 0)
    assert len(everything(transport, DEAD_LETTERS)) == len(poison)
    again.close()


def test_poison_alone_is_committed(log: Log, tmp_path: Path) -> None:
    """A restart behind nothing but poison does not put it aside again."""
    transport = log.open()
    for number in range(3):
        transport.send(TOPIC_TRACE_RECORDED, "acme", b"poison %d" % number)
    transport.flush(10)
    first = Learner(transport, tmp_path)
    first.until(lambda: len(everything(transport, DEAD_LETTERS)) == 3)
    first.close()
    again = Learner(log.open(), tmp_path)
    for _ in range(10):
        again.intake.poll(0.1)
    again.close()
    assert len(everything(transport, DEAD_LETTERS)) == 3


def test_a_full_disk_under_the_embedded_log_loses_nothing(tmp_path: Path) -> None:
    """Publishing does not wait while the log is full, and everything arrives once there is space."""
    reader = SqliteTransport(tmp_path / "log.db")
    consent(reader, "acme")
    opened: list[SqliteTransport] = []

    def limited() -> SqliteTransport:
        transport = SqliteTransport(tmp_path / "log.db")
        connection = transport._database._connection()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 60}")
        opened.append(transport)
        return transport

    publisher = Publisher(
        limited, TensorStore(f"file://{tmp_path}/store"), 64 << 20, first_wait=0.01, most_wait=0.05
    )
    learner = Learner(reader, tmp_path)
    slowest = 0.0
    for record in requests(600, "acme"):
        began = time.perf_counter()
        publisher.publish_trace(record, *features_of(record))
        slowest = max(slowest, time.perf_counter() - began)
        if record.request_id.endswith("00"):
            learner.intake.poll(0.05)
    deadline = time.monotonic() + 10
    while publisher.statistics().errors < 5:
        assert time.monotonic() < deadline
        learner.intake.poll(0.05)
    full = publisher.statistics()
    assert 0 < full.queue_depth <= 600
    assert full.published + full.queue_depth == 600
    assert sum(reader.end_offsets(TOPIC_TRACE_RECORDED).values()) == full.published
    opened[0]._database._connections[publisher._thread].execute("PRAGMA max_page_count = 1000000")
    assert publisher.flush(20)
    statistics = publisher.statistics()
    publisher.close()
    assert (statistics.published, statistics.dropped, statistics.features.lost) == (600, 0, 0)
    learner.until(lambda: learner.intake.report().traces == 600 and not learner.intake.report().waiting)
    report = learner.intake.report()
    assert (report.duplicates, report.dead_lettered) == (0, 0)
    learned = learner.ledger.tenants()["acme"]
    assert learned.requests + learned.left_out.get("excess", 0) == 600
    assert slowest < 0.25
    learner.close()
    reader.close()


def test_a_full_disk_under_the_ledger_loses_nothing(log: Log, tmp_path: Path) -> None:
    """A batch that the ledger could not take comes again, and no commit goes past it; dead letters do not."""
    transport = log.open()
    consent(transport, "acme")
    learner = Learner(transport, tmp_path)
    (pages,) = learner.ledger._connection.execute("PRAGMA page_count").fetchone()
    learner.ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    first, *rest = [contracts.encode(one) for one in requests(40, "acme")]
    for value in (first, b"poison", *rest[:29]):
        transport.send(TOPIC_TRACE_RECORDED, "acme", value)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        learner.until(lambda: False)
    learner.ledger._connection.execute("PRAGMA max_page_count = 1000000")
    for value in rest[29:]:
        transport.send(TOPIC_TRACE_RECORDED, "acme", value)
    learner.until(lambda: learner.intake.report().traces == 40)
    (stored,) = learner.ledger._connection.execute("SELECT count(*) FROM trace").fetchone()
    assert stored == 40
    assert len(everything(transport, DEAD_LETTERS)) == 1
    learner.close()


def test_a_full_disk_under_the_store_costs_features_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC in mid-write: traces arrive without features and are learned from by recomputing them."""
    transport = SqliteTransport(tmp_path / "log.db")
    consent(transport, "acme")

    def full(file: Any, parts: Iterator[bytes]) -> None:
        file.write(next(iter(parts)))
        raise OSError(errno.ENOSPC, "No space left on device")

    publisher = Publisher(
        lambda: SqliteTransport(tmp_path / "log.db"),
        TensorStore(f"file://{tmp_path}/store"),
        64 << 20,
        first_wait=0.01,
        most_wait=0.05,
        store_patience=0.2,
    )
    with monkeypatch.context() as patch:
        patch.setattr("collectors.store._write_all", full)
        for record in requests(50, "acme"):
            publisher.publish_trace(record, *features_of(record))
        deadline = time.monotonic() + 10
        while publisher.statistics().published < 50:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    statistics = publisher.statistics()
    publisher.close()
    assert (statistics.dropped, statistics.features.lost, statistics.features.stored) == (0, 50, 0)
    assert not list((tmp_path / "store").rglob("*.*"))
    learner = Learner(transport, tmp_path)
    learner.until(lambda: len(learner.order) == 50)
    assert learner.intake.report().recomputed == {"missing_features": 50}
    learner.close()
    transport.close()


def test_a_hot_tenant_does_not_keep_the_others_waiting(log: Log, tmp_path: Path) -> None:
    """Behind hundreds of a hot tenant's requests cold ones take their turns; excess is counted."""
    transport = log.open()
    cold = [f"cold-{number}" for number in range(12)]
    consent(transport, "hot", *cold)
    sent = MOST_WAITING + 150
    for record in requests(sent, "hot"):
        transport.send(TOPIC_TRACE_RECORDED, "hot", contracts.encode(record))
    for tenant in cold:
        for record in requests(2, tenant):
            transport.send(TOPIC_TRACE_RECORDED, tenant, contracts.encode(record))
    transport.flush(20)
    learner = Learner(transport, tmp_path, work=0.004)
    learner.until(lambda: set(cold) <= set(learner.order))
    assert learner.order.count("hot") < MOST_WAITING
    learner.until(lambda: not learner.intake.report().waiting and learner.intake.report().traces == sent + 24)
    last_cold = max(index for index, tenant in enumerate(learner.order) if tenant != "hot")
    assert last_cold < len(learner.order) - 50
    assert Counter(learner.order) == {"hot": learner.order.count("hot"), **dict.fromkeys(cold, 2)}
    hot = learner.ledger.tenants()["hot"]
    assert hot.requests + hot.left_out.get("excess", 0) == sent
    assert learner.intake.report().excess == hot.left_out.get("excess", 0)
    assert not any(learner.ledger.tenants()[tenant].left_out for tenant in cold)
    learner.close()
