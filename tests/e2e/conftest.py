"""The whole service, once for all end-to-end tests."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from adaptive.settings import Settings
from adaptive.up.stack import Stack
from tests.e2e.service import ROOT, Service

if TYPE_CHECKING:
    from collections.abc import Iterator


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Endpoint, engine, learner and controller on the embedded defaults, with small updates."""
    home = tmp_path_factory.mktemp("home")
    models = ROOT / ".adaptive" / "models"
    models.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(models)
    settings = Settings(
        home=home,
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
