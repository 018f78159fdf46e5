"""The whole service: on Kafka for the tests of the loop, on the embedded log for one of its own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from adaptive.settings import Settings
from adaptive.up.stack import Stack
from deploy.kafka.broker import free_port
from tests.e2e.service import ROOT, Service
from tests.kafka_broker import fresh_topics, quick_broker, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def running(home: Path, log_url: str | None) -> Iterator[Service]:
    """Endpoint, engine, learner and controller, with small updates."""
    models = ROOT / ".adaptive" / "models"
    models.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(models)
    settings = Settings(
        home=home,
        log_url=log_url,
        endpoint_port=free_port(),
        control_port=free_port(),
        acceptance_details=True,
        update_tokens=1500,
        update_token_steps=15_000,
    )
    with Stack(settings) as stack:
        service = Service(settings, stack)
        yield service
        service.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service on a real Kafka broker."""
    broker = quick_broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    try:
        warm_up(broker)
        with fresh_topics(broker) as url, running(tmp_path_factory.mktemp("home"), url) as service:
            yield service
    finally:
        broker.kill()


@pytest.fixture
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service on the embedded defaults."""
    with running(tmp_path_factory.mktemp("home"), None) as service:
        yield service
