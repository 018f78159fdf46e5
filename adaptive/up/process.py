"""One role as a child process with a session and a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from adaptive.up import sessions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adaptive.up.roles import Role

KILL_SECONDS: Final = 10.0
LEFTOVER_SECONDS: Final = 3.0
"""How long what a role started may outlive a role that has ended."""


class RoleProcess:
    """Starts, watches and ends the process of a role; may be started again after it has ended.

    Args:
        role: What to run.
        environment: Its whole environment.
        log_path: Where its output is appended; the log of the run before is kept beside it with `.1`.
    """

    def __init__(self, role: Role, environment: Mapping[str, str], log_path: Path) -> None:
        self.role: Final = role
        self.log_path: Final = log_path
        self.started_at = 0.0
        """Unix seconds of the last start."""
        self.restarts = 0
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        log_path.parent.mkdir(parents=True, exist_ok=True)
        if log_path.exists():
            log_path.replace(log_path.with_name(log_path.name + ".1"))

    @property
    def pid(self) -> int:
        """Process id of the last start, also that of its session.

        Raises:
            RuntimeError: it was never started.
        """
        if self._process is None:
            raise RuntimeError(f"{self.role.name} was never started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs; negative: the signal that ended it."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self.exit_code is None

    def start(self) -> None:
        """Start the process, from a thread that outlives it: the kernel ends it with the thread."""
        if self._process is not None:
            sessions.kill(self.pid, KILL_SECONDS)
            self.restarts += 1
        self.started_at = time.time()
        command = [sys.executable, "-m", "adaptive.up.child", str(os.getpid()), *self.role.command]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own roles
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, **self.role.environment},
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Ask the process to drain; what it started is its own to end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process and everything it started at once, as a crash of the machine would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            sessions.kill(self.pid, KILL_SECONDS)
            self._process.wait()

    def finish(self, timeout: float) -> bool:
        """Wait for the process to end after `terminate`, then kill whatever of its session is left.

        Returns:
            Whether the process itself ended in time.
        """
        if self._process is None:
            return True
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        if not sessions.wait(self.pid, LEFTOVER_SECONDS):
            sessions.kill(self.pid, KILL_SECONDS)
        return True

    def last_lines(self, count: int = 20) -> list[str]:
        """Last lines of the log."""
        with self.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - 16_384, 0))
            return log.read().decode(errors="replace").splitlines()[-count:]
