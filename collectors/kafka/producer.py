"""Appending to Kafka: idempotent, acknowledged by all in-sync replicas, compressed, in bounded time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from kafka import KafkaProducer, errors

from collectors.kafka.clients import connect
from collectors.kafka.errors import translate, translated
from collectors.kafka.records import partition_of
from collectors.topics import DEAD_LETTER_EXTRA_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectors.kafka.address import KafkaAddress
    from collectors.transport import OutgoingRecord

_OVERHEAD_BYTES: Final = 4096
"""Of a record batch: headers, keys, framing."""


class Producer:
    """One kafka-python producer, made on first use; safe to use from several threads.

    Args:
        options: Of every client (`client_options`).
        address: Names topics in the cluster.
        max_message_bytes: Largest record.
    """

    def __init__(self, options: Mapping[str, Any], address: KafkaAddress, max_message_bytes: int) -> None:
        self._address: Final = address
        self._seconds: Final = int(options["request_timeout_ms"]) / 1000
        self._lock: Final = threading.Lock()
        self._options: Final = {
            **options,
            "enable_idempotence": True,
            "acks": "all",
            "compression_type": "zstd",
            "linger_ms": 0,
            "batch_size": 256 << 10,
            "max_block_ms": options["request_timeout_ms"],
            # A send is over within the time of a request: acknowledged, refused, or given up.
            "delivery_timeout_ms": options["request_timeout_ms"],
            "request_timeout_ms": max(1000, int(options["request_timeout_ms"]) // 2),
            "max_request_size": max_message_bytes + DEAD_LETTER_EXTRA_BYTES + _OVERHEAD_BYTES,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }
        self._producer: KafkaProducer | None = None

    def append(self, batch: Sequence[OutgoingRecord], partitions: Mapping[str, int]) -> None:
        """Append records in order and wait until all of them are acknowledged.

        Args:
            batch: Records.
            partitions: Number of partitions of every topic in it.

        Raises:
            TransportError: the first error among the records. Others of the batch may be in the log.
        """
        producer = self._open()
        deadline = time.monotonic() + self._seconds
        pending: list[Any] = []
        with translated("append"):
            for record in batch:
                key = record.key.encode()
                pending.append(
                    producer.send(
                        self._address.full(record.topic),
                        value=record.value,
                        key=key,
                        headers=list(record.headers.items()),
                        partition=partition_of(record.key, partitions[record.topic]),
                    )
                )
        failure: Exception | None = None
        for future in pending:
            try:
                future.get(timeout=max(0.0, deadline - time.monotonic()))
            except errors.KafkaError as error:
                failure = failure or error
        if failure is not None:
            # kafka-python 3.0 may never find its brokers again after they did not answer for a while.
            self._discard(producer)
            raise translate(failure, f"append to {', '.join(sorted(partitions))}") from failure

    def close(self) -> None:
        """Close the connection; everything acknowledged is in the log."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            _end(producer, 1.0)

    def _discard(self, producer: KafkaProducer) -> None:
        """Drop a producer that failed; the next append makes another."""
        with self._lock:
            if self._producer is not producer:
                return
            self._producer = None
        _end(producer, 0.0)

    def _open(self) -> KafkaProducer:
        with self._lock:
            if self._producer is None:
                with translated(f"reach Kafka at {', '.join(self._address.servers)}"):
                    self._producer = connect(KafkaProducer, **self._options)
            return self._producer


def _end(producer: Any, seconds: float) -> None:
    """Close a producer, whatever it still holds after `seconds`."""
    try:
        producer.close(timeout=seconds)
    except errors.KafkaError:
        # close() ends at its flush while the brokers are away; what it would have sent was given up already.
        producer._sender.force_close()  # noqa: SLF001
        producer._closed = True  # noqa: SLF001
