"""A real Kafka broker for tests: settings that make it quick, and fresh topics in it."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from typing import TYPE_CHECKING, Final

from adaptive.contracts import TOPIC_ENGINE_TELEMETRY
from adaptive.kafka_settings import KafkaSettings
from collectors.kafka.address import KafkaAddress
from collectors.kafka.topics import KafkaTopicAdmin
from collectors.open import open_transport
from collectors.topics import topic_specs
from collectors.transport import TransportError
from deploy.kafka.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS: Final = 4
QUICK: Final = {
    # After a kill, the controller waits for the dead broker's session to end before it lets it in again.
    # Not less: a busy machine's broker would be taken for dead.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "300",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "0",
    "log.index.size.max.bytes": "65536",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
_numbers: Final = itertools.count()


def quick_broker(directory: Path) -> Broker:
    """A broker with short waits that ends with the tests however they end, not started yet."""
    return Broker(
        directory,
        properties=QUICK,
        java_options=("-XX:TieredStopAtLevel=1", "-Xshare:auto"),
        outlives=False,
    )


def warm_up(broker: Broker) -> None:
    """Have a group joined: the first one waits for seconds while the broker makes a topic for its offsets."""
    with fresh_topics(broker) as url:
        transport = open_transport(url)
        consumer = transport.consumer([TOPIC_ENGINE_TELEMETRY], "first")
        deadline = time.monotonic() + 60
        while not consumer.lag():
            assert time.monotonic() < deadline, f"no group can join in {broker.directory}"
        transport.close()


@contextlib.contextmanager
def fresh_topics(broker: Broker, partitions: int = PARTITIONS) -> Iterator[str]:
    """Log URL of new, empty topics in a running broker; they are removed in the end.

    Every URL has a prefix of its own, so topics and groups of one test are nothing to another.
    """
    url = f"kafka://{broker.address}?prefix=t{os.getpid()}-{next(_numbers)}."
    specs = topic_specs(partitions=partitions)
    address = KafkaAddress.parse(url)
    with KafkaTopicAdmin(address, KafkaSettings()) as admin:
        admin.create(specs)
    yield url
    with contextlib.suppress(TransportError), KafkaTopicAdmin(address, KafkaSettings()) as admin:
        admin.delete(specs)
