"""The current state a compacted topic describes: the latest message of every key."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Generic

import msgspec
import structlog

from adaptive import contracts
from adaptive.contracts import MessageT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from collectors.transport import LogRecord, Transport

_log = structlog.get_logger(__name__)

_WAIT_SECONDS: Final = 0.1


class CompactedView(Generic[MessageT]):
    """Latest message per key of a compacted topic, brought up to date by `poll`. Used by one thread.

    A message that does not decode is logged and left out: the key keeps what could be read last.

    Args:
        transport: The log.
        topic: A compacted topic.
        message_type: Struct its records decode to.
        merge: Joins what is known of a key with its next message, where that alone would not do.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        message_type: type[MessageT],
        merge: Callable[[MessageT, MessageT], MessageT] | None = None,
    ) -> None:
        self._topic: Final = topic
        self._type: Final[type[MessageT]] = message_type
        self._merge: Final[Callable[[MessageT, MessageT], MessageT] | None] = merge
        self._consumer: Final = transport.consumer([topic], None)
        self._latest: Final[dict[str, MessageT]] = {}
        self.unreadable = 0
        """Messages left out because they did not decode."""

    @property
    def latest(self) -> Mapping[str, MessageT]:
        """Message per key as of the last `poll`."""
        return self._latest

    def poll(self, timeout: float = 0.0, catch_up: float = 10.0) -> dict[str, MessageT | None]:
        """Read up to the end of the topic.

        Args:
            timeout: Seconds to wait for a change where there is none yet.
            catch_up: Most seconds to spend on reading what is there already.

        Returns:
            What changed since the last poll, per key; None where the key was removed.

        Raises:
            TransportUnavailableError: the log is away; `latest` stays as it was read so far.
        """
        changes = self._apply(self._consumer.poll(timeout))
        deadline = time.monotonic() + catch_up
        while any(self._consumer.lag().values()) and time.monotonic() < deadline:
            changes |= self._apply(self._consumer.poll(_WAIT_SECONDS))
        return changes

    def close(self) -> None:
        """Stop reading; `latest` stays."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _apply(self, records: list[LogRecord]) -> dict[str, MessageT | None]:
        changes: dict[str, MessageT | None] = {}
        for record in records:
            if record.value is None:
                changes[record.key] = None
                self._latest.pop(record.key, None)
                continue
            try:
                message = contracts.decode(record.value, self._type)
            except msgspec.MsgspecError as error:
                self.unreadable += 1
                _log.warning(
                    "message left out of the state",
                    topic=self._topic,
                    key=record.key,
                    offset=record.offset,
                    error=str(error),
                )
                continue
            known = self._latest.get(record.key)
            if self._merge is not None and known is not None:
                message = self._merge(known, message)
            changes[record.key] = self._latest[record.key] = message
        return changes
