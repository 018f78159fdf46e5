"""The publisher: never in the engine's way, whatever the log and the store do."""

from __future__ import annotations

import statistics
import threading
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from adaptive import contracts
from adaptive.contracts import TOPIC_ENGINE_TELEMETRY, TOPIC_TRACE_RECORDED
from collectors.features import FeatureMeta
from collectors.publisher import Publisher
from collectors.safetensors import TensorData
from collectors.sampling import Sampler
from collectors.store import StoreUnavailableError, TensorStore
from collectors.transport import OutgoingRecord, TransportUnavailableError, UnknownTopicError
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from collectors.store import StoredObject

META = FeatureMeta(feature_start=0, rows=2, dtype="bfloat16", feature_layers=(2, 15, 27), hidden_size=4)
TENSORS = {
    "features": TensorData("BF16", (2, 12), bytes(48)),
    "last_hidden": TensorData("BF16", (2, 4), bytes(16)),
}


class FakeLog:
    """A log in memory that can be away, stalled or picky; only what a publisher uses of a transport."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []
        self.away = False
        self.unknown: set[str] = set()
        self.may_go = threading.Event()
        self.may_go.set()
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a publisher has no business with {name}")

    def send_many(self, batch: Sequence[OutgoingRecord]) -> None:
        """Keep a batch, or fail as told."""
        self.may_go.wait()
        if self.away:
            raise TransportUnavailableError("away")
        for record in batch:
            if record.topic in self.unknown:
                raise UnknownTopicError(record.topic, [], "make it")
        self.records += batch

    def flush(self, timeout: float) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def traces(self) -> list[contracts.TraceRecord]:
        """Traces in the log."""
        return [
            contracts.decode(record.value or b"", contracts.TraceRecord)
            for record in self.records
            if record.topic == TOPIC_TRACE_RECORDED
        ]


class FaultyStore(TensorStore):
    """A store that is away while told so."""

    away = False

    def put(self, tenant: str, name: str, tensors: Mapping[str, TensorData]) -> StoredObject:
        """Store, or fail."""
        if self.away:
            raise StoreUnavailableError("away")
        return super().put(tenant, name, tensors)


@pytest.fixture
def log() -> FakeLog:
    """An empty log."""
    return FakeLog()


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    """An empty store."""
    return FaultyStore(f"file://{tmp_path}/store")


@pytest.fixture
def start(log: FakeLog, store: FaultyStore) -> Iterator[Callable[..., Publisher]]:
    """Start publishers; all are closed when the test ends."""
    started = []

    def make(queue_bytes: int = 1 << 20, factory: Callable[[], Any] = lambda: log) -> Publisher:
        publisher = Publisher(factory, store, queue_bytes, first_wait=0.005, most_wait=0.02)
        started.append(publisher)
        return publisher

    yield make
    log.may_go.set()
    for publisher in started:
        publisher.close(0.5)


def trace(number: int) -> contracts.TraceRecord:
    """A small trace."""
    return contracts.TraceRecord(
        trace_id=f"request:{number}",
        tenant="acme",
        request_id="request",
        segment=number,
        created_at=1.0,
        target_sha256="t",
        turbo_sha256="u",
        tokenizer_sha256="k",
        prompt_ids=[1, 2],
        prompt_length=2,
        output_start=0,
        output_ids=[3],
        steps=[],
        sampling=contracts.SamplingSummary(),
        finished=True,
    )


def telemetry(number: int = 0) -> contracts.EngineTelemetry:
    """A small report."""
    return contracts.EngineTelemetry("engine", 0.0, float(number), "t", "u", [], [], {}, {}, [])


def test_messages_and_traces_arrive_in_order(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """Everything published is in the log after a flush, each topic in its order, counted once."""
    publisher = start()
    for number in range(50):
        publisher.publish_trace(trace(number))
        publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", telemetry(number))
    assert publisher.flush(5)
    assert log.traces() == [trace(number) for number in range(50)]
    reports = [record.value for record in log.records if record.topic == TOPIC_ENGINE_TELEMETRY]
    assert reports == [contracts.encode(telemetry(number)) for number in range(50)]
    counters = publisher.statistics()
    assert (counters.published, counters.dropped, counters.errors) == (100, 0, 0)
    assert (counters.queue_depth, counters.queue_bytes) == (0, 0)


def test_features_are_there_before_their_record(
    log: FakeLog, store: FaultyStore, start: Callable[..., Publisher]
) -> None:
    """The record refers to a verified object that holds both tensors, and to what the meta data said."""
    publisher = start()
    log.may_go.clear()
    threads: list[str] = []

    def tensors() -> Mapping[str, TensorData]:
        threads.append(threading.current_thread().name)
        return TENSORS

    publisher.publish_trace(trace(0), tensors, META)
    eventually(lambda: threads)
    assert log.records == []
    log.may_go.set()
    assert publisher.flush(5)
    assert threads == ["trace-publisher"]
    (record,) = log.traces()
    reference = record.features
    assert reference is not None
    assert len(store.get(reference.uri, reference.sha256)) == reference.bytes
    assert (reference.rows, reference.dtype, reference.hidden_size) == (2, "bfloat16", 4)
    assert (reference.feature_start, reference.feature_layers) == (0, (2, 15, 27))


def test_repeated_request_ids_do_not_share_features(
    log: FakeLog, store: FaultyStore, start: Callable[..., Publisher]
) -> None:
    """A client that sends the same odd request id twice damages neither trace."""
    publisher = start()
    for created_at, byte in [(1.0, b"\1"), (2.0, b"\2")]:
        record = contracts.TraceRecord(
            **{
                **{name: getattr(trace(0), name) for name in trace(0).__struct_fields__},
                "trace_id": "../../odd id\n:0",
                "created_at": created_at,
            }
        )
        changed = {name: tensor._replace(data=byte * len(tensor.data)) for name, tensor in TENSORS.items()}
        publisher.publish_trace(record, changed, META)
    assert publisher.flush(5)
    for record in log.traces():
        assert record.features is not None
        store.get(record.features.uri, record.features.sha256)


def test_the_engine_is_never_kept_waiting(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """With a stalled log and a full queue, publishing stays below a millisecond and within its bytes."""
    log.may_go.clear()
    publisher = start(queue_bytes=100_000)
    seconds = []
    for number in range(3000):
        started = time.perf_counter()
        publisher.publish_trace(trace(number), lambda: TENSORS, META)
        publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", telemetry())
        seconds.append((time.perf_counter() - started) / 2)
    assert statistics.median(seconds) < 0.0002
    assert statistics.quantiles(seconds, n=100)[97] < 0.001
    counters = publisher.statistics()
    assert counters.queue_bytes <= 100_000
    assert counters.dropped > 2000


def test_the_oldest_traces_are_dropped_first(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """A full queue keeps the newest traces, and telemetry before any trace; each loss is counted."""
    log.may_go.clear()
    publisher = start(queue_bytes=60_000)
    publisher.publish_trace(trace(0))
    eventually(lambda: publisher._backlog._taken)
    for number in range(1, 200):
        publisher.publish_trace(trace(number))
        if number % 20 == 0:
            publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", telemetry(number))
    dropped = publisher.statistics()
    log.may_go.set()
    assert publisher.flush(5)
    segments = [record.segment for record in log.traces()]
    assert segments == [0, *range(200 - len(segments) + 1, 200)]
    assert dropped.dropped == 200 - len(segments)
    assert dropped.dropped_bytes > 0
    assert len([record for record in log.records if record.topic == TOPIC_ENGINE_TELEMETRY]) == 9


def test_a_record_larger_than_the_queue_drops_only_itself(
    log: FakeLog, start: Callable[..., Publisher]
) -> None:
    """What can never fit does not push the rest out."""
    publisher = start(queue_bytes=4096)
    log.may_go.clear()
    publisher.publish_trace(trace(0))
    huge = FeatureMeta(feature_start=0, rows=10_000, dtype="float32", feature_layers=(1,), hidden_size=64)
    publisher.publish_trace(trace(1), lambda: TENSORS, huge)
    log.may_go.set()
    assert publisher.flush(5)
    assert [record.segment for record in log.traces()] == [0]
    assert publisher.statistics().dropped == 1


def test_an_outage_of_the_log_loses_nothing_that_fits(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """Records wait while the log is away and arrive once, in order, when it is back."""
    log.away = True
    publisher = start()
    for number in range(20):
        publisher.publish_trace(trace(number), TENSORS, META)
    eventually(lambda: publisher.statistics().errors >= 3)
    assert not publisher.flush(0.02)
    log.away = False
    assert publisher.flush(5)
    assert [record.segment for record in log.traces()] == list(range(20))
    assert publisher.statistics().dropped == 0


def test_a_log_that_is_away_at_the_start_is_opened_later(
    log: FakeLog, start: Callable[..., Publisher]
) -> None:
    """Opening is tried again, whatever it raises."""
    attempts = []

    def factory() -> FakeLog:
        attempts.append(1)
        if len(attempts) < 4:
            raise OSError("no such host")
        return log

    publisher = start(factory=factory)
    publisher.publish_trace(trace(0))
    assert publisher.flush(5)
    assert (len(attempts), len(log.records), publisher.statistics().errors) == (4, 1, 3)


def test_a_store_that_is_away_holds_up_traces_only(
    log: FakeLog, store: FaultyStore, start: Callable[..., Publisher]
) -> None:
    """Telemetry passes while features wait; afterwards the traces come in order, with their features."""
    store.away = True
    publisher = start()
    for number in range(5):
        publisher.publish_trace(trace(number), TENSORS if number % 2 else lambda: TENSORS, META)
    publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", telemetry())
    eventually(lambda: log.records)
    eventually(lambda: publisher.statistics().errors >= 3)
    assert [record.topic for record in log.records] == [TOPIC_ENGINE_TELEMETRY]
    assert publisher.statistics().queue_depth == 5
    time.sleep(0.1)
    assert publisher.statistics().errors < 60, "attempts without a wait between them"
    store.away = False
    assert publisher.flush(5)
    assert [record.segment for record in log.traces()] == list(range(5))
    assert all(record.features for record in log.traces())


def failing() -> Mapping[str, TensorData]:
    """A copy from the device that fails."""
    raise RuntimeError("the device is lost")


@pytest.mark.parametrize(
    "tensors",
    [
        failing,
        {"features": TENSORS["features"]},
        {**TENSORS, "last_hidden": TensorData("F32", (2, 2), bytes(16))},
    ],
    ids=["raises", "missing", "shape"],
)
def test_unusable_features_do_not_cost_the_trace(
    log: FakeLog, start: Callable[..., Publisher], tensors: Any
) -> None:
    """A trace whose features fail is published without them and counted; the next one is whole."""
    publisher = start()
    publisher.publish_trace(trace(0), tensors, META)
    publisher.publish_trace(trace(1), TENSORS, META)
    assert publisher.flush(5)
    assert [record.features is None for record in log.traces()] == [True, False]
    assert publisher.statistics().errors == 1


def test_a_tenant_that_is_no_name_does_not_end_publishing(
    log: FakeLog, start: Callable[..., Publisher]
) -> None:
    """The store's refusal of a tenant id costs the features of that trace only."""
    publisher = start()
    record = contracts.TraceRecord(
        **{
            **{name: getattr(trace(0), name) for name in trace(0).__struct_fields__},
            "tenant": "../etc",
        }
    )
    publisher.publish_trace(record, TENSORS, META)
    assert publisher.flush(5)
    assert [trace.features for trace in log.traces()] == [None]


def test_an_unknown_topic_costs_only_its_own_records(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """A topic that the log refuses for good is dropped and counted; the rest of the batch arrives."""
    log.unknown.add("typo")
    log.may_go.clear()
    publisher = start()
    for topic in (TOPIC_ENGINE_TELEMETRY, "typo", TOPIC_ENGINE_TELEMETRY):
        publisher.publish(topic, "engine", telemetry())
    log.may_go.set()
    assert publisher.flush(5)
    assert [record.topic for record in log.records] == [TOPIC_ENGINE_TELEMETRY] * 2
    assert (publisher.statistics().published, publisher.statistics().dropped) == (2, 1)


def test_a_message_that_cannot_be_encoded_raises_nothing(
    log: FakeLog, start: Callable[..., Publisher]
) -> None:
    """A bug of the caller is counted, not thrown at the engine."""
    publisher = start()
    broken: Any = object()
    publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", broken)
    publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", telemetry())
    assert publisher.flush(5)
    assert (len(log.records), publisher.statistics().dropped) == (1, 1)


def test_a_message_is_taken_as_it_was_when_published(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """Counters that go on changing in the engine do not change what was published."""
    log.may_go.clear()
    publisher = start()
    report = telemetry()
    expected = contracts.encode(report)
    publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", report)
    report.counters.append(contracts.ArmCounters("acme", contracts.Arm.TURBO, 0))
    log.may_go.set()
    assert publisher.flush(5)
    assert [record.value for record in log.records] == [expected]


def test_close_sends_what_is_queued(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """A clean shutdown loses nothing and releases the log; later messages are dropped and counted."""
    publisher = start()
    for number in range(600):
        publisher.publish_trace(trace(number))
    publisher.close()
    assert (len(log.records), log.closed, publisher.statistics().dropped) == (600, True, 0)
    publisher.publish(TOPIC_ENGINE_TELEMETRY, "engine", telemetry())
    assert (publisher.statistics().dropped, publisher.statistics().queue_depth) == (1, 0)


@pytest.mark.parametrize("fault", ["log away", "store away", "log stalled"])
def test_close_ends_in_time(
    log: FakeLog, store: FaultyStore, start: Callable[..., Publisher], fault: str
) -> None:
    """A shutdown waits for its timeout at most, and counts what it had to leave."""
    log.away, store.away = fault == "log away", fault == "store away"
    if fault == "log stalled":
        log.may_go.clear()
    publisher = start()
    for number in range(40):
        publisher.publish_trace(trace(number), TENSORS, META)
    started = time.monotonic()
    publisher.close(0.2)
    assert time.monotonic() - started < 2
    log.may_go.set()
    publisher._thread.join(5)
    assert publisher.statistics().dropped + publisher.statistics().published == 40
    assert publisher.statistics().queue_depth == 0
    assert publisher.statistics().queue_bytes == 0


def test_traces_that_wait_together_share_an_object(log: FakeLog, store: FaultyStore) -> None:
    """What lingers in the queue goes into few objects; a flush does not wait for company."""
    publisher = Publisher(lambda: log, store, 1 << 20, linger=60.0)
    for number in range(20):
        publisher.publish_trace(trace(number), TENSORS, META)
    time.sleep(0.05)
    assert log.records == []
    assert publisher.flush(5)
    references = [record.features for record in log.traces() if record.features]
    assert [reference.first_row for reference in references] == list(range(0, 40, 2))
    assert {reference.object_rows for reference in references} == {40}
    statistics = publisher.statistics()
    publisher.close()
    assert (statistics.features.stored, statistics.features.objects) == (20, 1)
    assert statistics.features.bytes == references[0].bytes


def test_a_store_that_stays_away_costs_features_only(log: FakeLog, store: FaultyStore) -> None:
    """After its patience the publisher saves the traces; all are counted, and later ones are whole again."""
    store.away = True
    publisher = Publisher(
        lambda: log,
        store,
        1 << 20,
        first_wait=0.005,
        most_wait=0.02,
        store_patience=0.1,
    )
    for number in range(20):
        publisher.publish_trace(trace(number), TENSORS, META)
    eventually(lambda: len(log.records) == 20)
    assert all(record.features is None for record in log.traces())
    store.away = False
    time.sleep(0.03)
    publisher.publish_trace(trace(20), TENSORS, META)
    assert publisher.flush(5)
    statistics = publisher.statistics()
    publisher.close()
    assert log.traces()[-1].features is not None
    assert (statistics.published, statistics.dropped) == (21, 0)
    assert (statistics.features.stored, statistics.features.lost) == (1, 20)


def test_a_tenants_traces_can_be_taken_back(log: FakeLog, start: Callable[..., Publisher]) -> None:
    """Whether they wait in the queue or for a log that is away, a tenant's traces go nowhere; others do."""
    log.away = True
    publisher = start()
    tenants = ("acme", "other")
    for number in range(20):
        publisher.publish_trace(msgspec.structs.replace(trace(number), tenant=tenants[number % 2]))
        if number == 9:
            eventually(lambda: publisher.statistics().errors > 1)  # these are on their way
    assert publisher.drop_tenant("acme") == 10
    log.away = False
    assert publisher.flush(5)
    assert {record.tenant for record in log.traces()} == {"other"}
    statistics = publisher.statistics()
    assert (statistics.published, statistics.dropped, statistics.queue_bytes) == (10, 10, 0)
    publisher.publish_trace(trace(20))
    assert publisher.flush(5)
    assert log.traces()[-1].tenant == "acme"


def test_the_budget_holds_with_a_sampler(log: FakeLog, store: FaultyStore) -> None:
    """Features beyond the budget stay behind, their traces arrive, and the statistics say both."""
    publisher = Publisher(lambda: log, store, 1 << 20, sampler=Sampler(1000.0))
    for number in range(100):
        publisher.publish_trace(trace(number), TENSORS, META)
    assert publisher.flush(5)
    sampling = publisher.sampling()
    statistics = publisher.statistics()
    publisher.close()
    assert sampling.features_cut > 90
    assert (statistics.published, statistics.features.stored) == (100, 100 - sampling.features_cut)


def test_a_stalled_log_bounds_the_memory(log: FakeLog, store: FaultyStore) -> None:
    """With a log that takes nothing, a process grows by its queue and little more, whatever is published."""
    log.may_go.clear()
    publisher = Publisher(lambda: log, store, 8 << 20)
    step = contracts.VerifyStep(contracts.Arm.TURBO, 0, 0, [1, 2, 3, 4], 2, [0.5, 0.25, 0.125, 1.0])
    steps = [step] * 40
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20_000):
            publisher.publish_trace(msgspec.structs.replace(trace(number), steps=steps))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    statistics = publisher.statistics()
    log.may_go.set()
    publisher.close(5)
    assert 7 << 20 < statistics.queue_bytes <= 8 << 20
    assert statistics.dropped + statistics.queue_depth == 20_000
    assert (after - before) < 1.1 * (8 << 20)
