"""Logs to run the contract tests against, one per transport."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collectors.open import open_transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectors.transport import Transport

LEASE_SECONDS = 2.0
_WORKER = Path(__file__).with_name("log_worker.py")


class Log:
    """One log that a test opens as often as it likes, here and in processes of its own."""

    def __init__(self, url: str, resources: ExitStack) -> None:
        self.url = url
        self.lease_seconds = LEASE_SECONDS
        self._resources = resources

    def open(self) -> Transport:
        """Open the log once more; closed when the test ends."""
        transport = open_transport(self.url, lease_seconds=LEASE_SECONDS)
        self._resources.callback(transport.close)
        return transport

    def start(self, task: str, **arguments: Any) -> subprocess.Popen[str]:
        """Run a task of log_worker.py in a process of its own; killed when the test ends."""
        process = subprocess.Popen(
            [sys.executable, str(_WORKER), self.url, str(LEASE_SECONDS), task, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        self._resources.callback(_end, process)
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture(params=["sqlite", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """An empty log of every transport in turn."""
    url = (
        f"sqlite:///{tmp_path}/log.db" if request.param == "sqlite" else request.getfixturevalue("kafka_url")
    )
    with ExitStack() as resources:
        yield Log(url, resources)


@pytest.fixture
def transport(log: Log) -> Transport:
    """The log, opened."""
    return log.open()
