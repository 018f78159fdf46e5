"""Composition root of `adaptive up`."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console

from adaptive import log
from adaptive.up.addresses import base_url
from adaptive.up.progress import Progress
from adaptive.up.stack import Stack, StackError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from adaptive.settings import Settings

WAKE_SECONDS: Final = 0.5


class _Interrupted(Exception):  # noqa: N818  not an error
    """A signal asked for the end before everything was ready."""


def run(settings: Settings, mlflow_port: int | None = None) -> int:
    """Run the whole service until SIGINT, SIGTERM or the crash of the endpoint.

    Args:
        settings: Settings of every role.
        mlflow_port: Also run an MLflow server on this port of the loopback.

    Returns:
        Exit code: 0 after a signal, 1 after a failure.
    """
    log.configure("up")
    console = Console(stderr=True)
    ended = threading.Event()
    progress = Progress(console)
    with _signals(ended):

        def show(line: str) -> None:
            progress.say(line)
            if ended.is_set():
                raise _Interrupted

        stack = Stack(settings, mlflow_port=mlflow_port, progress=show)
        try:
            with progress.messages("starting"):
                stack.start()
            _welcome(console, settings, stack, mlflow_port)
            while not ended.is_set() and not stack.wait(WAKE_SECONDS):
                pass
        except _Interrupted:
            pass
        except StackError as error:
            console.print(f"error: {error}", markup=False, highlight=False)
            return 1
        finally:
            with progress.messages("draining"):
                stack.stop()
    if stack.failure is not None:
        console.print(f"error: {stack.failure}", markup=False, highlight=False)
        return 1
    console.print("stopped")
    return 0


def _welcome(console: Console, settings: Settings, stack: Stack, mlflow_port: int | None) -> None:
    rows = {
        "endpoint": base_url(settings.host, settings.endpoint_port) + "/v1",
        "admin API": base_url(settings.host, settings.control_port) + "/v1",
    }
    if mlflow_port is not None:
        rows["MLflow"] = f"http://127.0.0.1:{mlflow_port}"
    kept = settings.home / "admin_key" if settings.admin_key is None else "ADAPTIVE_ADMIN_KEY"
    rows["admin key"] = stack.admin_key if stack.admin_key_is_new else f"in {kept}"
    rows["logs"] = str(settings.home / "logs")
    for name, value in rows.items():
        console.print(f"{name:<10} {value}", markup=False, highlight=False, soft_wrap=True)
    console.print("Ctrl-C stops everything")


@contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    """Set `ended` on SIGINT or SIGTERM."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
