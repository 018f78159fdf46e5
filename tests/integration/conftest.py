"""The Kafka broker that integration tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka_broker import fresh_topics, quick_broker, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.kafka.broker import Broker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One running broker for the whole session; a test that stops or freezes it brings it back.

    Fails where the broker cannot be had (`make kafka` fetches it).
    """
    broker = quick_broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    warm_up(broker)
    yield broker
    broker.kill()


@pytest.fixture
def kafka_url(kafka_broker: Broker) -> Iterator[str]:
    """Log URL of fresh, empty topics of the contracts, 4 partitions each."""
    with fresh_topics(kafka_broker) as url:
        yield url
