"""Reading typed messages off the log; what cannot be read goes to the dead-letter topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic

import msgspec
import structlog

from adaptive import contracts
from adaptive.contracts import MessageT
from collectors.transport import TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from collectors.erasure import ErasedTenants
    from collectors.transport import LogRecord, Transport

_log = structlog.get_logger(__name__)

_FLUSH_SECONDS: Final = 10.0


class Received(msgspec.Struct, Generic[MessageT], frozen=True):
    """A decoded message and where it lies in the log."""

    message: MessageT
    partition: int
    offset: int
    key: str
    timestamp: float
    """Unix seconds at which the log accepted it."""


class MessageConsumer(Generic[MessageT]):
    """Messages of one topic for one group, committed by hand.

    A record that does not decode is copied to `<topic>.dlq` with its reason and origin in headers (x-error,
    x-original-topic, x-original-partition, x-original-offset), and the partition goes on. Tombstones of
    compacted topics are passed over, and so are, unread, the records of erased tenants.

    Args:
        transport: The log.
        topic: Topic to read.
        message_type: Struct its records decode to.
        group: Consumer group.
        erased: Erasures to respect; brought up to date before every poll.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        message_type: type[MessageT],
        group: str,
        *,
        erased: ErasedTenants | None = None,
    ) -> None:
        self._transport: Final = transport
        self._topic: Final = topic
        self._type: Final[type[MessageT]] = message_type
        self._erased: Final = erased
        self._consumer: Final = transport.consumer([topic], group)
        self._passed_over: Final[dict[int, set[int]]] = {}
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
        try:
            return [received for record in records if (received := self._decode(record)) is not None]
        except TransportError:
            self._rewind(records)
            raise

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Store where this group goes on.

        Args:
            positions: Next offset to read per partition; default: behind everything polled.
        """
        if positions is None:
            self._consumer.commit()
            self._passed_over.clear()
            return
        self._consumer.commit(
            {(self._topic, part): self._behind_passed_over(part, at) for part, at in positions.items()}
        )

    def lag(self) -> dict[int, int]:
        """Records left to poll per partition assigned here."""
        return {partition: behind for (_, partition), behind in self._consumer.lag().items()}

    def close(self) -> None:
        """Leave the group; commits nothing."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _decode(self, record: LogRecord) -> Received[MessageT] | None:
        if self._is_erased(record, None):
            self._pass_over_erased(record)
            return None
        if record.value is None and self._topic in contracts.COMPACTED_TOPICS:
            self._passed_over.setdefault(record.partition, set()).add(record.offset)
            return None
        try:
            if record.value is None:
                raise msgspec.DecodeError("a record without a value in a topic that is not compacted")
            message = contracts.decode(record.value, self._type)
        except msgspec.MsgspecError as error:
            self._dead_letter(record, str(error))
            self._passed_over.setdefault(record.partition, set()).add(record.offset)
            return None
        if self._is_erased(record, getattr(message, "generation", None)):
            self._pass_over_erased(record)
            return None
        return Received(message, record.partition, record.offset, record.key, record.timestamp)

    def _is_erased(self, record: LogRecord, generation: int | None) -> bool:
        return self._erased is not None and self._erased.is_erased(
            record.topic, record.partition, record.offset, record.key, generation
        )

    def _pass_over_erased(self, record: LogRecord) -> None:
        self.erased += 1
        self._passed_over.setdefault(record.partition, set()).add(record.offset)

    def _dead_letter(self, record: LogRecord, reason: str) -> None:
        headers = {
            **record.headers,
            "x-error": reason.encode(),
            "x-original-topic": record.topic.encode(),
            "x-original-partition": str(record.partition).encode(),
            "x-original-offset": str(record.offset).encode(),
        }
        self._transport.send(self._topic + contracts.DEAD_LETTER_SUFFIX, record.key, record.value, headers)
        self._transport.flush(_FLUSH_SECONDS)
        self.dead_lettered += 1
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
            transport, contracts.TOPIC_TRACE_RECORDED, contracts.TraceRecord, group, erased=erased
        )
