"""The topics that settings specify, and what makes them in the log that settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectors.topics import topic_specs
from collectors.transport import TransportError

if TYPE_CHECKING:
    from adaptive.settings import Settings
    from collectors.topics import TopicAdmin, TopicSpec

_DAY: Final = 86_400.0


def specified_topics(settings: Settings) -> tuple[TopicSpec, ...]:
    """Every topic as the settings want it."""
    retention = {
        "retention_seconds": settings.retention_days * _DAY,
        "retention_bytes": settings.retention_bytes,
    }
    if not is_kafka(settings):
        return topic_specs(**retention)  # type: ignore[arg-type]  # each goes where it belongs
    return topic_specs(
        partitions=settings.kafka_partitions,
        max_message_bytes=settings.kafka_max_message_bytes,
        **retention,  # type: ignore[arg-type]  # same
    )


def open_topic_admin(settings: Settings) -> TopicAdmin:
    """Connect to the log for making topics and looking at them.

    Raises:
        TransportUnavailableError: the log cannot be reached.
        TransportError: the URL names no log, or the log refuses; says why.
    """
    url = settings.resolved_log_url
    if is_kafka(settings):
        # Here: importing kafka-python costs a process without Kafka time.
        from collectors.kafka.address import KafkaAddress  # noqa: PLC0415
        from collectors.kafka.topics import KafkaTopicAdmin  # noqa: PLC0415

        return KafkaTopicAdmin(KafkaAddress.parse(url), settings)
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and rest.strip("/"):
        from collectors.sqlite.topics import SqliteTopicAdmin  # noqa: PLC0415

        return SqliteTopicAdmin(Path(rest[1:]))
    raise TransportError(
        f"log_url {url!r} names no log: use sqlite:///relative/path, sqlite:////absolute/path or "
        "kafka://host:port,host:port"
    )


def is_kafka(settings: Settings) -> bool:
    """Whether the log is in a Kafka cluster, where topics are made by command."""
    return settings.resolved_log_url.startswith("kafka://")


def make_topics(settings: Settings) -> list[str]:
    """Make the topics that are missing; returns their names.

    Raises:
        TransportError: as `open_topic_admin`, and where the log refuses.
    """
    with open_topic_admin(settings) as admin:
        return [state.name for state in admin.create(specified_topics(settings)) if state.created]
