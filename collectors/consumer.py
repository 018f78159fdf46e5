"""Reading typed messages off the log; what cannot be read goes to the dead-letter topic.

A record of a newer schema version is read like any other: the rules of the contracts allow a newer version
to add fields and nothing else, so what this version knows of it means what it always meant, and refusing it
would stop learning during every rolling update. Where a newer producer broke the rules the record does not
decode, and its dead letter says that it is newer, so that it can be replayed once this process is updated.
"""

from __future__ import annotations

import contextlib
import enum
import math
import time
from typing import TYPE_CHECKING, Final, Generic

import msgspec
import structlog

from adaptive import contracts
from adaptive.contracts import MessageT
from collectors.transport import OutgoingRecord, PartitionNotAssignedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from collectors.erasure import ErasedTenants
    from collectors.transport import LogRecord, Transport

_log = structlog.get_logger(__name__)

_FLUSH_SECONDS: Final = 10.0
_MOST: Final = 2**31 - 1
"""Of every count, index and token id in a trace: what ledger and tensors hold with room to spare."""


class Received(msgspec.Struct, Generic[MessageT], frozen=True):
    """A decoded message and where it lies in the log."""

    message: MessageT
    partition: int
    offset: int
    key: str
    timestamp: float
    """Unix seconds at which the log accepted it."""
    value: bytes = b""
    """The record as it lies there, fields that this version does not know included."""


class ConsumerStatistics(msgspec.Struct, frozen=True):
    """How a consumer keeps up."""

    received: int
    """Messages handed over."""
    dead_lettered: int
    """Records sent to the dead-letter topic."""
    lag: dict[int, int]
    """Records left to poll per partition assigned here."""
    behind_seconds: float
    """Age of the newest record polled while others wait behind it, else 0."""


class _Version(msgspec.Struct):
    schema_version: int = contracts.SCHEMA_VERSION


class _Skipped(enum.Enum):
    ERASED = enum.auto()
    REMOVED = enum.auto()


class MessageConsumer(Generic[MessageT]):
    """Messages of one topic for one group, committed by hand.

    A record that does not decode, or that contradicts itself, is copied to `<topic>.dlq` with its reason and
    origin in headers (x-error, x-original-topic, x-original-partition, x-original-offset), and the partition
    goes on. Tombstones of compacted topics are passed over, and so are, unread, records of erased tenants.

    Args:
        transport: The log.
        topic: Topic to read.
        message_type: Struct its records decode to.
        group: Consumer group.
        erased: Erasures to respect; brought up to date before every poll.
        check: What is wrong with a message under a key; None where nothing is.
        clock: Unix seconds.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        message_type: type[MessageT],
        group: str,
        *,
        erased: ErasedTenants | None = None,
        check: Callable[[str, MessageT], str | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._transport: Final = transport
        self._topic: Final = topic
        self._decoder: Final[msgspec.msgpack.Decoder[MessageT]] = msgspec.msgpack.Decoder(message_type)
        self._check: Final[Callable[[str, MessageT], str | None] | None] = check
        self._clock: Final = clock
        self._erased: Final = erased
        self._consumer: Final = transport.consumer([topic], group)
        self._passed_over: Final[dict[int, set[int]]] = {}
        self._received = 0
        self._newest = clock()
        self.uncommitted = False
        """Whether anything was polled since the last commit, dead letters included."""
        self.dead_lettered = 0
        """Records sent to the dead-letter topic by this consumer."""
        self.erased = 0
        """Records of erased tenants passed over by this consumer."""

    def poll(self, timeout: float, max_records: int = 500) -> list[Received[MessageT]]:
        """Return the next messages, waiting at most `timeout` seconds for a record.

        Raises:
            TransportUnavailableError: the log is away; nothing was skipped, poll again.
        """
        if self._erased is not None:
            self._erased.poll()
        records = self._consumer.poll(timeout, max_records)
        messages: list[Received[MessageT]] = []
        poison: list[tuple[LogRecord, str]] = []
        erased: list[LogRecord] = []
        removed: list[LogRecord] = []
        for record in records:
            if record.offset in self._passed_over.get(record.partition, ()):
                continue  # it comes again behind a message that was put back
            outcome = self._decode(record)
            if isinstance(outcome, Received):
                messages.append(outcome)
            elif isinstance(outcome, str):
                poison.append((record, outcome))
            else:
                (erased if outcome is _Skipped.ERASED else removed).append(record)
        if poison:
            try:
                self._dead_letter(poison)
            except TransportError:
                self._rewind(records)
                raise
        for record in (*erased, *removed, *(record for record, _ in poison)):
            self._passed_over.setdefault(record.partition, set()).add(record.offset)
        self.erased += len(erased)
        self._received += len(messages)
        if records:
            self.uncommitted = True
            self._newest = records[-1].timestamp
        return messages

    def put_back(self, messages: Sequence[Received[MessageT]]) -> None:
        """Poll messages again that could not be handled, so that no commit goes past them.

        Those of partitions that moved away meanwhile come to another member of the group.
        """
        for partition in {each.partition for each in messages}:
            first = min(each.offset for each in messages if each.partition == partition)
            with contextlib.suppress(PartitionNotAssignedError):
                self._consumer.seek(self._topic, partition, first)
        self._received -= len(messages)

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Store where this group goes on.

        Args:
            positions: Next offset to read per partition; default: behind everything polled.
        """
        if positions is None:
            self._consumer.commit()
            self._passed_over.clear()
            self.uncommitted = False
            return
        self._consumer.commit(
            {(self._topic, part): self._behind_passed_over(part, at) for part, at in positions.items()}
        )

    def lag(self) -> dict[int, int]:
        """Records left to poll per partition assigned here."""
        return {partition: behind for (_, partition), behind in self._consumer.lag().items()}

    def statistics(self) -> ConsumerStatistics:
        """How this consumer keeps up.

        Raises:
            TransportUnavailableError: the log is away.
        """
        lag = self.lag()
        behind = max(0.0, self._clock() - self._newest) if any(lag.values()) else 0.0
        return ConsumerStatistics(self._received, self.dead_lettered, lag, behind)

    def close(self) -> None:
        """Leave the group; commits nothing."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _decode(self, record: LogRecord) -> Received[MessageT] | str | _Skipped:
        """The message, or why it cannot be read, or why it need not be."""
        if self._is_erased(record, None):
            return _Skipped.ERASED
        if record.value is None:
            compacted = self._topic in contracts.COMPACTED_TOPICS
            return _Skipped.REMOVED if compacted else "a record without a value, but no compacted topic"
        try:
            message: MessageT = self._decoder.decode(record.value)
        except msgspec.MsgspecError as error:
            return _explained(record.value, error)
        fault = self._check(record.key, message) if self._check is not None else None
        if fault is not None:
            return fault
        if self._is_erased(record, getattr(message, "generation", None)):
            return _Skipped.ERASED
        return Received(message, record.partition, record.offset, record.key, record.timestamp, record.value)

    def _is_erased(self, record: LogRecord, generation: int | None) -> bool:
        return self._erased is not None and self._erased.is_erased(
            record.topic, record.partition, record.offset, record.key, generation
        )

    def _dead_letter(self, poison: list[tuple[LogRecord, str]]) -> None:
        topic = self._topic + contracts.DEAD_LETTER_SUFFIX
        self._transport.send_many(
            [
                OutgoingRecord(
                    topic,
                    record.key,
                    record.value,
                    {
                        **record.headers,
                        "x-error": reason.encode(),
                        "x-original-topic": record.topic.encode(),
                        "x-original-partition": str(record.partition).encode(),
                        "x-original-offset": str(record.offset).encode(),
                    },
                )
                for record, reason in poison
            ]
        )
        self._transport.flush(_FLUSH_SECONDS)
        self.dead_lettered += len(poison)
        for record, reason in poison:
            _log.warning(
                "record sent to the dead-letter topic",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=reason,
            )

    def _rewind(self, records: list[LogRecord]) -> None:
        """Go back before a batch that could not be handed over."""
        first: dict[int, int] = {}
        for record in records:
            first.setdefault(record.partition, record.offset)
        for partition, offset in first.items():
            self._consumer.seek(self._topic, partition, offset)

    def _behind_passed_over(self, partition: int, position: int) -> int:
        """Move a position over records that were dealt with here and never reached the caller."""
        passed_over = self._passed_over.get(partition, set())
        while position in passed_over:
            position += 1
        passed_over.difference_update({offset for offset in passed_over if offset < position})
        return position


class TraceConsumer(MessageConsumer[contracts.TraceRecord]):
    """The traces of every tenant whose partition this member of the group holds."""

    def __init__(self, transport: Transport, group: str, *, erased: ErasedTenants | None = None) -> None:
        super().__init__(
            transport,
            contracts.TOPIC_TRACE_RECORDED,
            contracts.TraceRecord,
            group,
            erased=erased,
            check=trace_fault,
        )


def trace_fault(key: str, record: contracts.TraceRecord) -> str | None:
    """What contradicts itself in a trace that decodes; None where nothing does."""
    if record.tenant != key:
        return f"tenant {record.tenant!r} under the key of {key!r}"
    if not record.trace_id:
        return "trace_id is empty, so that the trace cannot be told from others"
    for index, step in enumerate(record.steps):
        if not 0 <= step.accepted <= len(step.drafted):
            return f"$.steps[{index}]: {step.accepted} accepted of {len(step.drafted)} drafted"
    beyond = next(_beyond(record), None)
    return f"{beyond} is beyond what can be stored" if beyond is not None else None


def _beyond(record: contracts.TraceRecord) -> Iterator[str]:
    """Fields with numbers that no ledger and no tensor takes: such a trace would stop whoever stores it."""
    if not math.isfinite(record.created_at):
        yield "$.created_at"
    for name in ("segment", "prompt_length", "output_start"):
        if not 0 <= getattr(record, name) <= _MOST:
            yield f"$.{name}"
    for index, step in enumerate(record.steps):
        if not (0 <= step.version <= _MOST and 0 <= step.output_offset <= _MOST):
            yield f"$.steps[{index}]"
        if not _are_ids(step.drafted, least=-1):  # a place that was not drafted
            yield f"$.steps[{index}].drafted"
    for name in ("prompt_ids", "output_ids"):
        if not _are_ids(getattr(record, name)):
            yield f"$.{name}"


def _are_ids(ids: list[int], least: int = 0) -> bool:
    return not ids or (min(ids) >= least and max(ids) <= _MOST)


def _explained(value: bytes, error: Exception) -> str:
    """Why a record does not decode, and whether a newer version might be the reason."""
    try:
        version = msgspec.msgpack.decode(value, type=_Version).schema_version
    except msgspec.MsgspecError:
        return str(error)
    if version <= contracts.SCHEMA_VERSION:
        return str(error)
    return (
        f"schema version {version} is newer than {contracts.SCHEMA_VERSION}, the newest this process reads, "
        f"and did not only add fields ({error}): update this process, then replay the dead letter"
    )
