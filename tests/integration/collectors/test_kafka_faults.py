"""Faults of a real broker: after each, no trace that the log accepted is lost, and none is used twice."""

from __future__ import annotations

import gc
import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kafka import KafkaConsumer, errors

from adaptive import contracts
from adaptive.contracts import TOPIC_TRACE_RECORDED as TOPIC
from adaptive.kafka_settings import KafkaSettings
from collectors.consumer import TraceConsumer
from collectors.open import open_transport
from collectors.publisher import Publisher
from collectors.store import TensorStore
from collectors.transport import OutgoingRecord, TransportUnavailableError
from learners.ledger import Ledger
from tests.integration.collectors.conftest import LEASE_SECONDS, Log
from tests.integration.collectors.test_messages import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectors.transport import Transport
    from deploy.kafka.broker import Broker

TENANTS = [f"tenant-{index}" for index in range(8)]
GROUP = "learners"


@pytest.fixture
def log(kafka_url: str, kafka_broker: Broker) -> Iterator[Log]:
    """An empty Kafka log; its broker runs again when the test is over."""
    with ExitStack() as resources:
        yield Log(kafka_url, resources)
        if kafka_broker.pid is None:
            kafka_broker.start()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A learner's ledger."""
    opened = Ledger(tmp_path / "ledger.db")
    yield opened
    opened.close()


def impatient(log: Log, seconds: float = 2.0) -> Transport:
    """The log with short waits."""
    settings = KafkaSettings(kafka_timeout_seconds=seconds)
    transport = open_transport(log.url, lease_seconds=LEASE_SECONDS, kafka=settings)
    log._resources.callback(transport.close)
    return transport


def traces(first: int, count: int) -> list[OutgoingRecord]:
    """Traces of requests of their own, tenants in turn."""
    return [
        OutgoingRecord(TOPIC, tenant, contracts.encode(numbered(number, tenant)))
        for number in range(first, first + count)
        for tenant in [TENANTS[number % len(TENANTS)]]
    ]


def numbered(number: int, tenant: str) -> contracts.TraceRecord:
    """The trace of request `number`."""
    name = f"request-{number}"
    return msgspec.structs.replace(
        trace(0, tenant), trace_id=f"{name}:0", request_id=name, created_at=float(number)
    )


class Learning:
    """What a learner does with traces: enter them in the ledger, then commit."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.used: list[str] = []
        self.seen = 0

    def round(self, consumer: TraceConsumer, timeout: float = 0.1, *, commit: bool = True) -> None:
        """Poll once."""
        received = consumer.poll(timeout)
        for each in received:
            self.seen += 1
            if self.ledger.enter(each.message, each.partition, each.offset):
                self.used.append(each.message.trace_id)
        if received and commit:
            consumer.commit()

    def until(self, consumers: list[TraceConsumer], done: Callable[[], bool], seconds: float = 40.0) -> None:
        """Poll in turn until `done`; a log that is away is tried again."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"{len(self.used)} used, {self.seen} seen"
            for consumer in consumers:
                try:
                    self.round(consumer)
                except TransportUnavailableError:
                    time.sleep(0.1)


def expected(count: int) -> list[str]:
    """Ids of the traces from 0 on."""
    return sorted(numbered(number, "t").trace_id for number in range(count))


def publish_through(log: Log, tmp_path: Path, fault: Callable[[], Any], count: int) -> Publisher:
    """Publish `count` traces, most of them while `fault` runs."""
    publisher = Publisher(
        lambda: impatient(log),
        TensorStore(f"file://{tmp_path}/store"),
        64 << 20,
        first_wait=0.05,
        most_wait=0.5,
    )
    publisher.publish_trace(numbered(0, TENANTS[0]))
    assert publisher.flush(20)
    running = threading.Thread(target=fault)
    running.start()
    number = 1
    while running.is_alive() or number < count:
        if number < count:
            started = time.perf_counter()
            publisher.publish_trace(numbered(number, TENANTS[number % len(TENANTS)]))
            assert time.perf_counter() - started < 0.25  # an engine never waits for the log
            number += 1
        time.sleep(0.01)
    running.join()
    return publisher


@pytest.mark.parametrize("seconds", [30])
def test_a_broker_that_was_killed_for_a_while_costs_nothing(
    log: Log, ledger: Ledger, kafka_broker: Broker, tmp_path: Path, seconds: float
) -> None:
    """Traces published during the outage arrive, the consumer goes on, and each is used once."""
    learning = Learning(ledger)
    consumer = TraceConsumer(impatient(log), GROUP)

    def outage() -> None:
        kafka_broker.kill()
        time.sleep(seconds)
        kafka_broker.start()

    publisher = publish_through(log, tmp_path, outage, 400)
    learning.until([consumer], lambda: len(learning.used) == 400)
    publisher.close(10)
    statistics = publisher.statistics()
    assert (statistics.published, statistics.dropped) == (400, 0)
    assert statistics.errors > 0
    assert sorted(learning.used) == expected(400)


def test_a_frozen_broker_costs_nothing(
    log: Log, ledger: Ledger, kafka_broker: Broker, tmp_path: Path
) -> None:
    """A broker that accepts connections and answers nothing is an outage too, and its end is noticed."""
    learning = Learning(ledger)
    consumer = TraceConsumer(impatient(log), GROUP)

    def freeze() -> None:
        kafka_broker.freeze()
        time.sleep(5)
        kafka_broker.thaw()

    publisher = publish_through(log, tmp_path, freeze, 200)
    learning.until([consumer], lambda: len(learning.used) == 200)
    publisher.close(10)
    assert (publisher.statistics().published, publisher.statistics().dropped) == (200, 0)
    assert sorted(learning.used) == expected(200)


def test_calls_end_in_bounded_time_while_the_broker_is_frozen(log: Log, kafka_broker: Broker) -> None:
    """Sending, reading and asking say that the log is away, soon."""
    transport = impatient(log, 1.0)
    transport.send_many(traces(0, 8))
    group = transport.consumer([TOPIC], GROUP)
    kafka_broker.freeze()
    try:
        for call in (
            lambda: transport.send(TOPIC, "a", b""),
            lambda: transport.end_offsets(TOPIC),
            lambda: transport.consumer([TOPIC], None),
            group.lag,
            lambda: [group.poll(0.5) for _ in range(8)],
        ):
            started = time.monotonic()
            with pytest.raises(TransportUnavailableError):
                call()
            assert time.monotonic() - started < 10
    finally:
        kafka_broker.thaw()
    deadline = time.monotonic() + 20
    while True:
        try:
            transport.send(TOPIC, "a", b"after")
            break
        except TransportUnavailableError:
            assert time.monotonic() < deadline


def test_an_outage_leaves_no_threads_and_sockets_behind(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python keeps those of a client that could not connect; hours of attempts would exhaust them."""
    # pytest keeps log records, and with them the tracebacks and sockets that they refer to.
    caplog.set_level(logging.CRITICAL, "kafka")
    away = open_transport("kafka://127.0.0.1:9", kafka=KafkaSettings(kafka_timeout_seconds=0.3))
    log._resources.callback(away.close)

    def attempts(count: int) -> tuple[int, int]:
        for _ in range(count):
            for call in (lambda: away.send(TOPIC, "a", b""), lambda: away.consumer([TOPIC], GROUP)):
                with pytest.raises(TransportUnavailableError):
                    call()
        gc.collect()  # clients are cycles: their sockets go with them, whenever the collector comes by
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    threads, files = attempts(1)
    more_threads, more_files = attempts(6)
    assert more_threads <= threads
    assert more_files <= files + 4  # of the last attempt, whose traceback may still be held


def test_a_rebalance_in_mid_batch_loses_and_repeats_nothing(log: Log, ledger: Ledger) -> None:
    """A member that joins while another works on a batch: each trace is used once, by one of them."""
    transport = impatient(log)
    transport.send_many(traces(0, 300))
    learning = Learning(ledger)
    first = TraceConsumer(transport, GROUP)
    batch: list[Any] = []
    while not batch:
        batch = first.poll(0.5, max_records=40)
    second = TraceConsumer(impatient(log), GROUP)
    for each in batch:
        learning.seen += 1
        if ledger.enter(each.message, each.partition, each.offset):
            learning.used.append(each.message.trace_id)
    first.commit()
    transport.send_many(traces(300, 100))
    learning.until([first, second], lambda: len(learning.used) == 400 and len(second.lag()) == 2)
    assert sorted(learning.used) == expected(400)
    assert len(learning.used) == len(set(learning.used))
    assert not first.lag().keys() & second.lag().keys()


def test_a_commit_put_off_by_a_rebalance_is_made_before_leaving(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that closes while its group rebalances leaves nothing that its successor must read again."""
    transport = impatient(log)
    transport.send_many(traces(0, 40))
    consumer = transport.consumer([TOPIC], GROUP)
    seen = 0
    while seen < 40:
        seen += len(consumer.poll(0.5))
    commit = KafkaConsumer.commit
    refusals = iter([True, True])  # of the commit, and of the first attempt to make up for it

    def refuse(client: KafkaConsumer, *arguments: Any, **options: Any) -> None:
        if next(refusals, False):
            raise errors.RebalanceInProgressError("the group rebalances")
        commit(client, *arguments, **options)

    monkeypatch.setattr(KafkaConsumer, "commit", refuse)
    consumer.commit()
    consumer.close()
    successor = transport.consumer([TOPIC], GROUP)
    while not successor.lag():
        successor.poll(0.1)
    assert sum(successor.lag().values()) == 0


def test_a_consumer_killed_between_ledger_and_commit_uses_nothing_twice(
    log: Log, ledger: Ledger, tmp_path: Path
) -> None:
    """Its successor reads what was not committed again, and the ledger knows it."""
    transport = impatient(log)
    transport.send_many(traces(0, 120))
    victim = log.start("learn", group=GROUP, ledger=str(tmp_path / "ledger.db"))
    assert victim.stdout is not None
    entered = 0
    while entered < 60:
        entered = int(victim.stdout.readline())
    victim.kill()
    victim.wait()
    learning = Learning(ledger)
    consumer = TraceConsumer(transport, GROUP)
    learning.until([consumer], lambda: learning.seen == 120)
    assert len(learning.used) <= 120 - entered
    assert len(ledger.waiting_requests()) == 120


def test_duplicated_and_reordered_delivery_is_used_once(log: Log, ledger: Ledger) -> None:
    """A producer that sent again after a lost answer, or late, changes nothing."""
    transport = impatient(log)
    batch = traces(0, 100)
    transport.send_many(batch[50:])
    transport.send_many(list(reversed(batch)))
    transport.send_many(batch)
    learning = Learning(ledger)
    consumer = TraceConsumer(transport, GROUP)
    learning.until([consumer], lambda: learning.seen == 250)
    assert sorted(learning.used) == expected(100)
