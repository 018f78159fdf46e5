"""Records that could not be read, kept with reason and origin: listed, sent again once, or dropped.

A log cannot change a record, so what became of a dead letter is another record behind it in the same topic
and partition: a marker, with the dead letter's key, no value, and its place in headers. It needs no group, no
other topic and no compaction, works the same on every transport, and outlives the dead letter, being younger.
Where the log can delete single records (the embedded one), a dropped dead letter is deleted.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

from adaptive.contracts import DEAD_LETTER_SUFFIX
from collectors.erasure import ErasedTenants
from collectors.inspection import batches
from collectors.transport import LogRecord, OutgoingRecord, TransportError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from collectors.transport import Transport

REASON_HEADER: Final = "x-error"
ORIGIN_HEADERS: Final = ("x-original-topic", "x-original-partition", "x-original-offset")
HANDLED_HEADER: Final = "x-handled"
PLACE_HEADERS: Final = ("x-handled-partition", "x-handled-offset")
REPLAYED: Final = "replayed"
DROPPED: Final = "dropped"
_MARKS: Final = frozenset({REPLAYED.encode(), DROPPED.encode()})
_FLUSH_SECONDS: Final = 30.0
_NUMBER: Final = re.compile(rb"\d{1,18}")


class AlreadyHandledError(TransportError):
    """A dead letter was replayed or dropped before."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that a consumer could not read."""

    topic: str
    """The dead-letter topic."""
    partition: int
    offset: int
    tenant: str
    """Its key."""
    reason: str
    at: float
    """Unix seconds at which it was given up."""
    origin_topic: str
    origin_partition: int
    origin_offset: int
    handled: str
    """replayed, dropped, or empty."""
    record: LogRecord

    @property
    def name(self) -> str:
        """Its place in the dead-letter topic, as people name it."""
        return f"{self.partition}:{self.offset}"


@runtime_checkable
class ForgettingLog(Protocol):
    """A log that can delete single records."""

    def forget(self, topic: str, partition: int, offsets: Collection[int]) -> int:
        """Delete records at once; returns how many there were."""


class DeadLetters:
    """The dead letters of one topic.

    Args:
        transport: The log.
        topic: The topic whose records could not be read.
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport: Final = transport
        self._origin: Final = topic
        self._topic: Final = topic + DEAD_LETTER_SUFFIX

    def read(self) -> list[DeadLetter]:
        """Every dead letter with what became of it, oldest first; those of erased tenants do not exist.

        Raises:
            TransportUnavailableError: the log is away.
        """
        letters: dict[tuple[int, int], DeadLetter] = {}
        consumer = self._transport.consumer([self._topic], None)
        with contextlib.closing(consumer), ErasedTenants(self._transport) as erased:
            erased.poll()
            ends = self._transport.end_offsets(self._topic)
            for batch, _ in batches(consumer, self._topic, ends):
                for record in batch:
                    place = _handled_place(record)
                    if place is not None:
                        if place in letters:
                            handled = record.headers[HANDLED_HEADER].decode()
                            letters[place] = msgspec.structs.replace(letters[place], handled=handled)
                    elif not erased.is_erased(record.topic, record.partition, record.offset, record.key):
                        letters[record.partition, record.offset] = _letter(record)
        return sorted(letters.values(), key=lambda letter: (letter.at, letter.partition, letter.offset))

    def replay(self, letters: Sequence[DeadLetter]) -> None:
        """Put dead letters back on the topic they came from, once, as they were before they were given up.

        That is the topic asked for, whatever a header says: anybody who writes to the log can make one up.
        The embedded log keeps record and marker together or not at all. On Kafka a broker that dies between
        them can leave the record without its marker; sent again then, consumers know it by its trace_id.

        Raises:
            AlreadyHandledError: one of them was replayed or dropped before; nothing was sent.
            TransportUnavailableError: the log is away.
        """
        self._check(letters)
        for letter in letters:
            own = {REASON_HEADER, *ORIGIN_HEADERS}
            headers = {name: value for name, value in letter.record.headers.items() if name not in own}
            again = OutgoingRecord(self._origin, letter.record.key, letter.record.value, headers)
            self._transport.send_many([again, _marker(letter, REPLAYED)])
        self._transport.flush(_FLUSH_SECONDS)

    def drop(self, letters: Sequence[DeadLetter]) -> bool:
        """Give dead letters up for good.

        Returns:
            True where they were deleted, False where they are only marked and their bytes go with retention.

        Raises:
            AlreadyHandledError: one of them was replayed or dropped before.
            TransportUnavailableError: the log is away.
        """
        self._check(letters)
        if isinstance(self._transport, ForgettingLog):
            for partition in sorted({letter.partition for letter in letters}):
                offsets = [letter.offset for letter in letters if letter.partition == partition]
                self._transport.forget(self._topic, partition, offsets)
            return True
        self._transport.send_many([_marker(letter, DROPPED) for letter in letters])
        self._transport.flush(_FLUSH_SECONDS)
        return False

    def _check(self, letters: Sequence[DeadLetter]) -> None:
        """Look again just before acting: somebody else may have been faster."""
        now = {letter.name: letter.handled for letter in self.read()}
        for letter in letters:
            handled = now.get(letter.name, DROPPED)
            if handled:
                raise AlreadyHandledError(f"dead letter {letter.name} was {handled} before; nothing was done")


def _letter(record: LogRecord) -> DeadLetter:
    topic, partition, offset = (record.headers.get(name, b"") for name in ORIGIN_HEADERS)
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        tenant=record.key,
        reason=record.headers.get(REASON_HEADER, b"unknown").decode(errors="replace"),
        at=record.timestamp,
        origin_topic=topic.decode(errors="replace") or record.topic.removesuffix(DEAD_LETTER_SUFFIX),
        origin_partition=_number(partition),
        origin_offset=_number(offset),
        handled="",
        record=record,
    )


def _marker(letter: DeadLetter, what: str) -> OutgoingRecord:
    partition, offset = PLACE_HEADERS
    headers = {
        HANDLED_HEADER: what.encode(),
        partition: str(letter.partition).encode(),
        offset: str(letter.offset).encode(),
    }
    return OutgoingRecord(letter.topic, letter.record.key, None, headers)


def _handled_place(record: LogRecord) -> tuple[int, int] | None:
    """Partition and offset of the dead letter that a marker is about; None for what is no marker.

    A record that could not be read may have any headers, and must not pass for a marker.
    """
    if record.value is not None or record.headers.get(HANDLED_HEADER) not in _MARKS:
        return None
    partition, offset = (_number(record.headers.get(name, b"")) for name in PLACE_HEADERS)
    return (partition, offset) if min(partition, offset) >= 0 else None


def _number(header: bytes) -> int:
    """What a header counts; -1 where it is no number."""
    return int(header) if _NUMBER.fullmatch(header) else -1
