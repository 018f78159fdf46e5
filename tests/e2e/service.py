"""What the end-to-end tests do with a running service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adaptive.demo.client import AdminClient, EndpointClient
from adaptive.demo.traffic import TrafficPlayer
from adaptive.internal_key import internal_key
from adaptive.workloads import load
from learners.status import LearnerStatus, read_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptive.settings import Settings
    from adaptive.up.stack import Stack

ROOT = Path(__file__).resolve().parents[2]


class Service:
    """A stack and its clients."""

    def __init__(self, settings: Settings, stack: Stack) -> None:
        self.settings = settings
        self.stack = stack
        self._clients: list[EndpointClient] = []
        self.admin = AdminClient(f"http://{settings.host}:{settings.control_port}", stack.admin_key)

    def client(self, key: str) -> EndpointClient:
        """A tenant's client."""
        url = f"http://{self.settings.host}:{self.settings.endpoint_port}"
        client = EndpointClient(url, key, self.settings.model, internal_key(self.settings))
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Close every client."""
        for client in self._clients:
            client.close()
        self.admin.close()

    def traffic(self, client_key: Callable[[], EndpointClient], workload: str) -> TrafficPlayer:
        """Players of a workload's traffic, not started."""
        return TrafficPlayer(client_key, load(workload).traffic, concurrency=3, max_tokens=64)

    def learner(self) -> LearnerStatus | None:
        """The learner's own report."""
        return read_status(self.settings.home / "learner" / "status.json")
