"""Kafka's records as the log's, and where a key's records lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.partitioner import murmur2

from collectors.transport import LogRecord

if TYPE_CHECKING:
    from collectors.transport import Partition


def partition_of(key: str, partitions: int) -> int:
    """Partition of a key: murmur2 of its UTF-8 bytes, sign bit off, modulo the number of partitions.

    This is what Kafka's Java client does by default, so a producer in any language agrees. It depends on the
    number of partitions: where that grows, most keys move, and a key's records before and after are in no
    order with each other. So topics are made with the number they keep.
    """
    return int(murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def log_record(name: Partition, record: Any) -> LogRecord:
    """A record of kafka-python's consumer as the log's."""
    return LogRecord(
        topic=name[0],
        partition=name[1],
        offset=record.offset,
        key="" if record.key is None else bytes(record.key).decode(errors="replace"),
        value=None if record.value is None else bytes(record.value),
        headers={header: bytes(value or b"") for header, value in record.headers},
        timestamp=record.timestamp / 1000,
    )
