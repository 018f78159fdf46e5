"""Which topics exist and how long each keeps its records."""

from __future__ import annotations

from typing import Final

import msgspec

from adaptive import contracts

_DAY: Final = 86_400.0
_DAYS_KEPT: Final = {contracts.TOPIC_ENGINE_TELEMETRY: 1.0}
_WEEK: Final = 7.0
_TRACE_BYTES: Final = 1 << 30
_OTHER_BYTES: Final = 256 << 20


class TopicSpec(msgspec.Struct, frozen=True):
    """Name and retention of one topic."""

    name: str
    compacted: bool = False
    """Keep the latest record of every key for ever instead of all records for a time."""
    retention_seconds: float = _WEEK * _DAY
    """Age at which records go; of compacted topics: superseded records and tombstones only."""
    retention_bytes: int = _OTHER_BYTES
    """Bytes kept per partition, the oldest go first (as Kafka's retention.bytes); unused where compacted."""


def topic_specs() -> tuple[TopicSpec, ...]:
    """Every topic of the contracts and its dead-letter topic."""
    specs = []
    for name in sorted(contracts.TOPICS):
        kept = _DAYS_KEPT.get(name, _WEEK) * _DAY
        limit = _TRACE_BYTES if name == contracts.TOPIC_TRACE_RECORDED else _OTHER_BYTES
        specs.append(
            TopicSpec(
                name,
                compacted=name in contracts.COMPACTED_TOPICS,
                retention_seconds=_DAY if name in contracts.COMPACTED_TOPICS else kept,
                retention_bytes=limit,
            )
        )
        specs.append(TopicSpec(name + contracts.DEAD_LETTER_SUFFIX))
    return tuple(specs)
