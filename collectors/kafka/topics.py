"""Making Kafka's topics and comparing them with what is specified."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kafka import KafkaAdminClient, errors
from kafka.admin import ConfigResource, ConfigResourceType

from collectors.kafka.clients import connect
from collectors.kafka.errors import translated
from collectors.kafka.options import client_options
from collectors.topics import TopicSpec, TopicState
from collectors.transport import TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from adaptive.kafka_settings import KafkaSettings
    from collectors.kafka.address import KafkaAddress

_SEGMENTS: Final = 14
"""Retention removes whole segments: one lasts this part of the retention time, which is cut by as much, so
that a record is gone when the retention time is over."""
_FIXED: Final = "fixed when a topic is made"
_SPREAD_SECONDS: Final = 3.0


class KafkaTopicAdmin:
    """A `TopicAdmin` of one cluster; connects when it is made.

    Args:
        address: Brokers and prefix.
        settings: Connection, replication.

    Raises:
        TransportUnavailableError: no broker can be reached.
        TransportError: the brokers refuse; see the settings.
    """

    def __init__(self, address: KafkaAddress, settings: KafkaSettings) -> None:
        self._address: Final = address
        self._settings: Final = settings
        with translated(f"reach Kafka at {', '.join(address.servers)}"):
            self._admin: Final = connect(KafkaAdminClient, **client_options(address, settings))

    def create(self, specs: Sequence[TopicSpec], *, update: bool = False) -> list[TopicState]:
        """Make missing topics and report; see `TopicAdmin.create`."""
        states = self.describe(specs)
        missing = {spec for spec, state in zip(specs, states, strict=True) if not state.partitions}
        if missing:
            wanted = {
                self._address.full(spec.name): {
                    "num_partitions": spec.partitions,
                    "replication_factor": self._settings.kafka_replication or -1,
                    "configs": topic_config(spec, self._settings),
                }
                for spec in specs
                if spec in missing
            }
            with translated(f"create topics {', '.join(sorted(wanted))}"):
                self._create(wanted)
        before = dict(zip(specs, states, strict=True))
        found = self.describe(specs)
        if update:
            self._update([spec for spec in specs if spec not in missing])
            # Brokers learn of it from their controller a moment later.
            deadline = time.monotonic() + _SPREAD_SECONDS
            while any(_mendable(state) for state in found) and time.monotonic() < deadline:
                time.sleep(_SPREAD_SECONDS / 20)
                found = self.describe(specs)
        return [
            msgspec.structs.replace(
                state,
                created=spec in missing,
                updated=update and state.differences != before[spec].differences and spec not in missing,
            )
            for spec, state in zip(specs, found, strict=True)
        ]

    def describe(self, specs: Sequence[TopicSpec]) -> list[TopicState]:
        """Report; see `TopicAdmin.describe`."""
        names = [self._address.full(spec.name) for spec in specs]
        with translated("describe topics"):
            found = {
                topic["name"]: topic
                for topic in self._admin.describe_topics(names)
                if topic["error_code"] == errors.NoError.errno
            }
            resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in found]
            configs = self._admin.describe_configs(resources, config_filter="all") if resources else {}
        return [
            self._state(spec, found.get(name), configs.get("topic", {}).get(name, {}))
            for spec, name in zip(specs, names, strict=True)
        ]

    def delete(self, specs: Sequence[TopicSpec]) -> None:
        """Remove topics with everything in them; those that are not there are passed over."""
        there = [spec for spec, state in zip(specs, self.describe(specs), strict=True) if state.partitions]
        if there:
            with translated("delete topics"):
                self._admin.delete_topics([self._address.full(spec.name) for spec in there])

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _create(self, wanted: dict[str, Any]) -> None:
        # Another process may have been faster; the report shows what it made.
        with contextlib.suppress(errors.TopicAlreadyExistsError):
            self._admin.create_topics(wanted)
        self._admin.wait_for_topics(list(wanted))

    def _update(self, specs: Sequence[TopicSpec]) -> None:
        resources = [
            ConfigResource(
                ConfigResourceType.TOPIC,
                self._address.full(spec.name),
                configs=topic_config(spec, self._settings),
            )
            for spec in specs
        ]
        if not resources:
            return
        with translated("update topics"):
            results = self._admin.alter_configs(resources).get("topic", {})
        for name, result in results.items():
            if result != "OK":
                raise TransportError(f"Kafka refuses the settings of topic {name}: {result}")

    def _state(self, spec: TopicSpec, found: Any, config: dict[str, Any]) -> TopicState:
        if found is None:
            return TopicState(spec.name, 0, differences=("missing",))
        partitions = found["partitions"]
        differences = []
        if len(partitions) != spec.partitions:
            differences.append(f"partitions is {len(partitions)}, specified {spec.partitions} ({_FIXED})")
        copies = min((len(partition["replica_nodes"]) for partition in partitions), default=0)
        wanted = self._settings.kafka_replication
        if wanted is not None and copies != wanted:
            differences.append(f"replication is {copies}, specified {wanted} ({_FIXED})")
        for name, value in topic_config(spec, self._settings).items():
            actual = config.get(name, {}).get("value")
            if actual != value:
                differences.append(f"{name} is {actual}, specified {value}")
        return TopicState(spec.name, len(partitions), differences=tuple(differences))


def _mendable(state: TopicState) -> bool:
    """Whether something differs that an update changes."""
    return any(_FIXED not in difference for difference in state.differences)


def topic_config(spec: TopicSpec, settings: KafkaSettings) -> dict[str, str]:
    """Kafka's configuration of a topic."""
    milliseconds = int(spec.retention_seconds * 1000)
    segment = max(1000, milliseconds // _SEGMENTS)
    config = {
        "max.message.bytes": str(spec.max_message_bytes),
        # When the log took a record, whatever its producer's clock says: retention goes by it.
        "message.timestamp.type": "LogAppendTime",
        "segment.ms": str(segment),
    }
    if settings.kafka_min_insync_replicas is not None:
        config["min.insync.replicas"] = str(settings.kafka_min_insync_replicas)
    if spec.compacted:
        config |= {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(milliseconds),
            "max.compaction.lag.ms": str(milliseconds),
        }
    else:
        config |= {
            "cleanup.policy": "delete",
            "retention.ms": str(milliseconds - segment),
            "retention.bytes": str(spec.retention_bytes),
        }
    return config
