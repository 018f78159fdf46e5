"""`adaptive learn`: a supervisor and one learner actor on a local Ray, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import structlog

from collectors.keeper import store_kept
from learners.paths import LearnerPaths, drafter_directories
from learners.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adaptive.settings import Settings

_log = structlog.get_logger(__name__)


def run(settings: Settings, stop: threading.Event | None = None) -> None:
    """Learn until told to stop.

    Call it from the main thread, where it takes SIGTERM and SIGINT, or pass `stop`. The
    process lowers its own priority and that of everything it starts.

    Args:
        settings: Of this installation.
        stop: Ends learning when set; default: signals do.

    Raises:
        SystemExit: `learners` asks for more than there is; nothing was started.
        CheckpointError: target or turbo is missing or unusable; nothing was started.
    """
    if settings.learners is not None and settings.learners > 1:
        raise SystemExit(
            f"error: learners: {settings.learners} learners are not supported yet, one serves every tenant; "
            "leave it at 1 (ADAPTIVE_LEARNERS)"
        )
    drafter_directories(settings)
    paths = LearnerPaths(settings.home)
    paths.root.mkdir(parents=True, exist_ok=True)
    os.nice(settings.learner_niceness)
    from learners.ray import RayLearner  # Ray takes seconds to import  # noqa: PLC0415

    handle = RayLearner(settings)
    event = stop or threading.Event()
    with _signals(event) if stop is None else nullcontext():
        _log.info("learner supervised", status=str(paths.status))
        with store_kept(settings):
            Supervisor(handle, paths.status).run(event)
    _log.info("learner stopped")


@contextmanager
def _signals(event: threading.Event) -> Iterator[None]:
    """Set `event` on SIGTERM and SIGINT, as long as this lasts."""
    previous = {
        number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
