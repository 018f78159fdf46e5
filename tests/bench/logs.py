"""Fresh logs for benchmarks, one per transport."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from adaptive.kafka_settings import KafkaSettings
from collectors.kafka.address import KafkaAddress
from collectors.kafka.topics import KafkaTopicAdmin
from collectors.topics import topic_specs
from deploy.kafka.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TRANSPORTS = ("embedded", "Kafka")


def bench_broker(directory: Path) -> Broker:
    """A broker that ends with the benchmark, also where that is killed; not started yet."""
    return Broker(directory, properties={"group.initial.rebalance.delay.ms": "0"}, outlives=False)


@contextmanager
def fresh_logs(scratch: Path, transports: tuple[str, ...] = TRANSPORTS) -> Iterator[Callable[[str], str]]:
    """Give a function that makes an empty log of a transport and returns its URL; a broker runs meanwhile."""
    broker = None
    if "Kafka" in transports:
        broker = bench_broker(scratch / "kafka")
        broker.start()

    def make(transport: str) -> str:
        name = uuid.uuid4().hex[:8]
        if transport == "embedded":
            return f"sqlite:///{scratch}/{name}/log.db"
        assert broker is not None
        url = f"kafka://{broker.address}?prefix={name}."
        with KafkaTopicAdmin(KafkaAddress.parse(url), KafkaSettings()) as admin:
            admin.create(topic_specs())
        return url

    try:
        yield make
    finally:
        if broker is not None:
            broker.stop()
