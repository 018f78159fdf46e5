"""Reading traces beside the consumers that work on them: in no group, committing and changing nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from adaptive.contracts import TOPIC_TRACE_RECORDED, Arm, TraceRecord, VerifyStep
from collectors.erasure import ErasedTenants
from collectors.transport import LogRecord, TransportUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from collectors.transport import Consumer, Transport

_WAIT_SECONDS: Final = 0.5
_SILENCE_SECONDS: Final = 30.0
_CLOCK_SKEW_SECONDS: Final = 300.0
"""A trace is made before the log accepts it; clocks of two machines may disagree by this much."""
_WINDOW_LEAST: Final = 64
_WINDOW_GROWTH: Final = 8


class Selection(msgspec.Struct, frozen=True):
    """Which traces are meant; an empty set means all."""

    tenants: frozenset[str] = frozenset()
    requests: frozenset[str] = frozenset()
    arms: frozenset[Arm] = frozenset()
    versions: frozenset[int] = frozenset()
    """Adapter versions; 0 is turbo (and no drafts)."""
    since: float | None = None
    """Unix seconds of the trace's making, inclusive."""
    until: float | None = None
    """Exclusive."""

    def may_hold(self, record: LogRecord) -> bool:
        """Whether a record can be meant, judged without decoding it."""
        if self.tenants and record.key not in self.tenants:
            return False
        return self.since is None or record.timestamp >= self.since - _CLOCK_SKEW_SECONDS

    def step(self, step: VerifyStep) -> bool:
        """Whether a verify step's arm and version are meant."""
        return (not self.arms or step.arm in self.arms) and (
            not self.versions or step.version in self.versions
        )

    def trace(self, trace: TraceRecord) -> bool:
        """Whether a trace is meant: for arms and versions, if any of its steps is."""
        return (
            (not self.tenants or trace.tenant in self.tenants)
            and (not self.requests or trace.request_id in self.requests)
            and (self.since is None or trace.created_at >= self.since)
            and (self.until is None or trace.created_at < self.until)
            and (not (self.arms or self.versions) or any(map(self.step, trace.steps)))
        )


class Found(msgspec.Struct, frozen=True):
    """A trace and the record that holds it."""

    record: LogRecord
    trace: TraceRecord


class TraceReader:
    """Reads the traces of every tenant; those of erased tenants do not exist here. Used by one thread.

    Args:
        transport: The log.
        topic: Topic of TraceRecords.
    """

    def __init__(self, transport: Transport, topic: str = TOPIC_TRACE_RECORDED) -> None:
        self._transport: Final = transport
        self._topic: Final = topic
        self._erased: Final = ErasedTenants(transport)
        self._decoder: Final = msgspec.msgpack.Decoder(TraceRecord)
        self._consumer: Final = transport.consumer([topic], None)
        self.unreadable = 0
        """Records passed over because they did not decode; consumers send them to the dead-letter topic."""
        self.erased = 0
        """Records passed over because their tenant was erased."""

    def scan(
        self, selection: Selection, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> Iterator[Found]:
        """Yield what is selected from the oldest record to the ends as they are now, in order per tenant.

        Args:
            selection: Which traces.
            progress: Told the offsets read and there are, now and then.

        Raises:
            TransportUnavailableError: the log is away.
        """
        ends = self._transport.end_offsets(self._topic)
        self._erased.poll()
        self._seek(dict.fromkeys(ends, 0))
        for batch, read in self._batches(ends):
            progress(sum(read.values()), sum(ends.values()))
            for record in batch:
                if record.offset < ends[record.partition]:
                    yield from self._selected(record, selection)

    def newest(self, selection: Selection, count: int) -> list[Found]:
        """The newest `count` traces selected, oldest first; `follow` goes on behind them.

        Raises:
            TransportUnavailableError: the log is away.
        """
        self._erased.poll()
        window = max(_WINDOW_LEAST, count)
        while True:
            ends = self._transport.end_offsets(self._topic)
            starts = {partition: max(0, end - window) for partition, end in ends.items()}
            self.unreadable = self.erased = 0
            self._seek(starts)
            per_partition: dict[int, list[Found]] = {partition: [] for partition in ends}
            for batch, _ in self._batches(ends):
                for record in batch:
                    per_partition[record.partition] += self._selected(record, selection)
            if all(len(found) >= count or not starts[part] for part, found in per_partition.items()):
                found = [item for items in per_partition.values() for item in items]
                found.sort(
                    key=lambda item: (item.record.timestamp, item.record.partition, item.record.offset)
                )
                return found[-count:] if count else []
            window *= _WINDOW_GROWTH

    def follow(self, selection: Selection, timeout: float = 1.0) -> list[Found]:
        """What came since the last call, waiting at most `timeout` seconds for a record.

        Raises:
            TransportUnavailableError: the log is away; call again.
        """
        self._erased.poll()
        batch = self._consumer.poll(timeout)
        return [found for record in batch for found in self._selected(record, selection)]

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()
        self._erased.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _seek(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            self._consumer.seek(self._topic, partition, offset)

    def _batches(self, ends: dict[int, int]) -> Iterator[tuple[list[LogRecord], dict[int, int]]]:
        return batches(self._consumer, self._topic, ends)

    def _selected(self, record: LogRecord, selection: Selection) -> list[Found]:
        if not selection.may_hold(record):
            return []
        try:
            if record.value is None:
                raise msgspec.DecodeError("no value")
            trace = self._decoder.decode(record.value)
        except msgspec.MsgspecError:
            self.unreadable += 1
            return []
        if self._erased.is_erased(
            record.topic, record.partition, record.offset, record.key, trace.generation
        ):
            self.erased += 1
            return []
        return [Found(record, trace)] if selection.trace(trace) else []


def batches(
    consumer: Consumer, topic: str, ends: dict[int, int]
) -> Iterator[tuple[list[LogRecord], dict[int, int]]]:
    """Poll a consumer until every partition is read up to `ends`; yields batches and the offsets reached.

    Raises:
        TransportUnavailableError: the log is away, or gives nothing although there is something.
    """
    read = dict.fromkeys(ends, 0)
    heard = time.monotonic()
    while any(read[partition] < end for partition, end in ends.items()):
        batch = consumer.poll(_WAIT_SECONDS)
        for record in batch:
            read[record.partition] = record.offset + 1
        if batch:
            heard = time.monotonic()
        else:
            # Offsets without a record, at the end of a partition or in all of it: only the lag tells.
            lag = consumer.lag()
            read |= {part: ends[part] for part in ends if lag.get((topic, part)) == 0}
            if time.monotonic() - heard > _SILENCE_SECONDS:
                raise TransportUnavailableError(
                    f"the log gave nothing of {topic} for {_SILENCE_SECONDS:g} s although there is more: "
                    "check that its brokers are up, then retry"
                )
        yield batch, read
