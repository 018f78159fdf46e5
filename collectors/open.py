"""From a log URL to a transport, and to what makes its topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adaptive.kafka_settings import KafkaSettings
from collectors.sqlite import SqliteTransport
from collectors.transport import TransportError

if TYPE_CHECKING:
    from collectors.transport import Transport


def open_transport(url: str, *, lease_seconds: float = 10.0, kafka: KafkaSettings | None = None) -> Transport:
    """Open the log that `Settings.log_url` names.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path` or `kafka://host:port,host:port`.
        lease_seconds: A consumer that gave no sign for this long loses its partitions to its group.
        kafka: Connection settings of a Kafka log; default: the environment's (ADAPTIVE_KAFKA_*).

    Raises:
        TransportError: the URL names no log, or its file is none.
        TransportUnavailableError: the embedded log cannot be opened at the moment. Kafka is reached on use.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and rest.strip("/"):
        return SqliteTransport(Path(rest[1:]), lease_seconds=lease_seconds)
    if scheme == "kafka":
        # Here: importing kafka-python costs a process without Kafka a second of start.
        from collectors.kafka.address import KafkaAddress  # noqa: PLC0415
        from collectors.kafka.transport import KafkaTransport  # noqa: PLC0415

        address = KafkaAddress.parse(url)
        return KafkaTransport(address, kafka or KafkaSettings(), lease_seconds=lease_seconds)
    raise TransportError(
        f"log_url {url!r} names no log: use sqlite:///relative/path, sqlite:////absolute/path or "
        "kafka://host:port,host:port"
    )
