"""Which topics exist, how long each keeps its records, and the Protocol of what makes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from adaptive import contracts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

_DAY: Final = 86_400.0
_DAYS_KEPT: Final = {contracts.TOPIC_ENGINE_TELEMETRY: 1.0}
_WEEK: Final = 7.0
_BULKY: Final = frozenset({contracts.TOPIC_TRACE_RECORDED, contracts.TOPIC_ARM_SCORED})
"""Topics with records for every request; the others are small."""
_TRACE_BYTES: Final = 1 << 30
_OTHER_BYTES: Final = 256 << 20
_FEW: Final = 4
DEAD_LETTER_EXTRA_BYTES: Final = 64 << 10


class TopicSpec(msgspec.Struct, frozen=True):
    """Name, retention and shape of one topic."""

    name: str
    compacted: bool = False
    """Keep the latest record of every key for ever instead of all records for a time."""
    retention_seconds: float = _WEEK * _DAY
    """Age at which records go; of compacted topics: superseded records and tombstones only."""
    retention_bytes: int = _OTHER_BYTES
    """Bytes kept per partition, the oldest go first (as Kafka's retention.bytes); unused where compacted."""
    partitions: int = _FEW
    """Fixed when the topic is made: a key's partition follows from it."""
    max_message_bytes: int = 8 << 20


class TopicState(msgspec.Struct, frozen=True):
    """What was found of one topic."""

    name: str
    partitions: int
    """0 where the topic is missing."""
    created: bool = False
    """Just now."""
    updated: bool = False
    """Just now."""
    differences: tuple[str, ...] = ()
    """What is not as specified, in words."""


class TopicAdmin(Protocol):
    """Makes topics and looks at them."""

    def create(self, specs: Sequence[TopicSpec], *, update: bool = False) -> list[TopicState]:
        """Make the topics that are missing and say what differs in those that are there.

        Args:
            specs: Topics wanted.
            update: Also give existing topics the specified retention and limits. Partitions stay.

        Raises:
            TransportUnavailableError: the log cannot be reached.
            TransportError: the log refuses; names the topic and the reason.
        """

    def describe(self, specs: Sequence[TopicSpec]) -> list[TopicState]:
        """Say what is there and what differs; errors as `create`."""

    def close(self) -> None:
        """Release connections. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


def topic_specs(
    *,
    retention_seconds: float = _WEEK * _DAY,
    retention_bytes: int = _TRACE_BYTES,
    partitions: int = _FEW,
    max_message_bytes: int = 8 << 20,
) -> tuple[TopicSpec, ...]:
    """Every topic of the contracts and its dead-letter topic.

    Args:
        retention_seconds: Age at which traces and what derives from them go.
        retention_bytes: Of traces and what derives from them, per partition.
        partitions: Of the topics keyed by tenant that all learners share; others need few.
        max_message_bytes: Largest record.
    """
    specs = []
    for name in sorted(contracts.TOPICS):
        compacted = name in contracts.COMPACTED_TOPICS
        kept = min(_DAYS_KEPT.get(name, math.inf) * _DAY, retention_seconds)
        specs.append(
            TopicSpec(
                name,
                compacted=compacted,
                retention_seconds=_DAY if compacted else kept,
                retention_bytes=retention_bytes if name in _BULKY else _OTHER_BYTES,
                partitions=partitions if name in _BULKY else min(partitions, _FEW),
                max_message_bytes=max_message_bytes,
            )
        )
        specs.append(
            TopicSpec(
                name + contracts.DEAD_LETTER_SUFFIX,
                retention_seconds=retention_seconds,
                partitions=min(partitions, _FEW),
                # A dead letter is a record that fitted and the reason why nobody could read it.
                max_message_bytes=max_message_bytes + DEAD_LETTER_EXTRA_BYTES,
            )
        )
    return tuple(specs)
