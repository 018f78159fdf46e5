"""Sending recorded traces again, byte for byte, and proving it by reading them back."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from collectors.transport import OffsetRangeError, OutgoingRecord, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from collectors.transport import LogRecord, Transport

_BATCH: Final = 200
_FLUSH_SECONDS: Final = 30.0


class Resendable(Protocol):
    """A record of a log or of a file."""

    @property
    def key(self) -> str:
        """Its key."""

    @property
    def value(self) -> bytes | None:
        """Its bytes."""

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Its headers."""


class Resent(msgspec.Struct, frozen=True):
    """What was sent."""

    records: int
    bytes: int
    sha256: str
    """Of the session (`SessionDigest`), equal before and after."""


class ResendError(TransportError):
    """What lies in the log is not what was sent."""


class SessionDigest:
    """One sha256 over records: of keys, values, headers and their order per key, whatever the partitions."""

    def __init__(self) -> None:
        self._keys: Final[dict[str, hashlib._Hash]] = {}

    def add(self, record: Resendable) -> bytes:
        """Take a record in; returns its own digest."""
        digest = hashlib.sha256(
            msgspec.msgpack.encode((record.key, record.value, sorted(record.headers.items())))
        ).digest()
        self._keys.setdefault(record.key, hashlib.sha256()).update(digest)
        return digest

    def sha256(self) -> str:
        """Of everything so far (hex)."""
        parts = sorted((key, digest.digest()) for key, digest in self._keys.items())
        return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()


def resend(
    records: Iterable[Resendable],
    log: Transport,
    topic: str,
    progress: Callable[[int], None] = lambda _count: None,
) -> Resent:
    """Append records to a topic, in order, and read them back.

    Args:
        records: In order per key.
        log: Where to.
        topic: Topic of that log.
        progress: Told the number of records sent.

    Raises:
        ResendError: the records read back differ.
        TransportError: the log is away or refuses; what was sent so far stays.
    """
    before = log.end_offsets(topic)
    sent, wanted = SessionDigest(), Counter[bytes]()
    batch: list[OutgoingRecord] = []
    count = size = 0
    for record in records:
        wanted[sent.add(record)] += 1
        batch.append(OutgoingRecord(topic, record.key, record.value, dict(record.headers)))
        count += 1
        size += len(record.value or b"")
        if len(batch) == _BATCH:
            log.send_many(batch)
            batch = []
            progress(count)
    if batch:
        log.send_many(batch)
    log.flush(_FLUSH_SECONDS)
    found = SessionDigest()
    for partition, end in log.end_offsets(topic).items():
        if end > before[partition]:
            for again in log.read(topic, partition, before[partition], end - 1):
                # Others may be writing at the same time.
                digest = SessionDigest().add(again)
                if wanted[digest] > 0:
                    wanted[digest] -= 1
                    found.add(again)
    if found.sha256() != sent.sha256():
        raise ResendError(
            f"the records read back from {topic} are not those sent: {wanted.total()} of {count} are missing "
            "or changed, or their order is another; look at the log's own messages, then send them again"
        )
    return Resent(count, size, sent.sha256())


def lies_in(record: LogRecord, log: Transport, topic: str) -> bool:
    """Whether a log's topic holds this very record at its place: then it is where the record came from."""
    if record.partition not in log.end_offsets(topic):
        return False
    try:
        for there in log.read(topic, record.partition, record.offset, record.offset):
            return (there.key, there.value, there.timestamp) == (record.key, record.value, record.timestamp)
    except OffsetRangeError:
        return False
    return False
