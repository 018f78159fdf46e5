"""Watches the learner actor: reports its state, counts its restarts, and replaces it when it hangs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import structlog

from learners.status import LearnerStatus, write_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event

_log = structlog.get_logger(__name__)

REPORT_SECONDS: Final = 1.0
HANG_SECONDS: Final = 300.0
"""A learner without a sign of life for this long is started again; a training step takes seconds."""


class Heartbeat(NamedTuple):
    """What the actor answers."""

    pid: int
    silent_seconds: float
    """Since the learner's loop last went round."""
    status: LearnerStatus


class LearnerAwayError(Exception):
    """The actor does not answer: it died and is being restarted, or is still starting."""


class LearnerHandle(Protocol):
    """The learner actor, wherever it runs."""

    def heartbeat(self) -> Heartbeat:
        """Ask for a report; LearnerAwayError if none comes in time."""

    def restart(self) -> None:
        """Kill the actor's process and start it again; it resumes from ledger and checkpoint."""

    def stop(self) -> None:
        """Let the actor end what it does and go."""


class Supervisor:
    """Writes the status file every second until told to stop."""

    def __init__(
        self,
        handle: LearnerHandle,
        status_path: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._handle: Final = handle
        self._status_path: Final = status_path
        self._clock: Final = clock
        self._last = LearnerStatus("starting", clock())
        self._pid = 0
        self._restarts = 0

    def run(self, stop: Event) -> None:
        """Watch until `stop` is set, then let the actor go."""
        try:
            while not stop.is_set():
                self.watch()
                stop.wait(REPORT_SECONDS)
        finally:
            self._handle.stop()
            self._write(msgspec.structs.replace(self._last, state="stopped", paused=False))

    def watch(self) -> None:
        """Ask once, write the status, restart a learner that hangs."""
        try:
            beat = self._handle.heartbeat()
        except LearnerAwayError as error:
            if self._last.state == "running":
                _log.warning("learner away", error=str(error))
                self._last.state = "restarting"
            self._last.paused = False
            self._write(self._last)
            return
        if self._pid and beat.pid != self._pid:
            self._restarts += 1
            _log.warning("learner restarted", pid=beat.pid, restarts=self._restarts)
        self._pid = beat.pid
        self._last = beat.status
        self._write(beat.status)
        if beat.silent_seconds > HANG_SECONDS:
            _log.error("learner hangs, restarting it", silent_seconds=round(beat.silent_seconds))
            self._handle.restart()

    def _write(self, status: LearnerStatus) -> None:
        status.updated_at = self._clock()
        status.pid = self._pid
        status.restarts = self._restarts
        write_status(self._status_path, status)
