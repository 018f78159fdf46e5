"""A command line whose settings come from the test alone."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
import structlog
import uvicorn
from typer.testing import CliRunner, Result

from adaptive.cli.main import app
from adaptive.settings import Settings
from controller.app import create_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of this machine reaches a test; lines are long enough not to be folded."""
    for name in list(os.environ):
        if name.startswith("ADAPTIVE_") or name == "MLFLOW_TRACKING_URI":
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    """A command that configured logs leaves nothing behind."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def adaptive() -> Callable[..., Result]:
    """Run `adaptive` with arguments."""
    runner = CliRunner()

    def run(*arguments: object) -> Result:
        return runner.invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A controller at the port and with the key that the environment names."""
    monkeypatch.setenv("ADAPTIVE_ADMIN_KEY", "adm_cli")
    monkeypatch.setenv("ADAPTIVE_HOME", str(tmp_path / "home"))
    server = uvicorn.Server(uvicorn.Config(create_app(Settings()), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    with structlog.testing.capture_logs():  # its log lines are not the command's
        thread.start()
        while not server.started:
            time.sleep(0.01)
        monkeypatch.setenv("ADAPTIVE_CONTROL_PORT", str(server.servers[0].sockets[0].getsockname()[1]))
        yield
        server.should_exit = True
        thread.join()
