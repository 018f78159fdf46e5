"""The whole service on one machine, as the Python API behind `adaptive up` and `adaptive demo`."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import structlog
from filelock import FileLock, Timeout

from adaptive.up.environment import child_environment
from adaptive.up.process import RoleProcess
from adaptive.up.roles import standard_roles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adaptive.settings import Settings
    from adaptive.up.roles import Role

WATCH_SECONDS: Final = 0.2
FIRST_BACKOFF_SECONDS: Final = 1.0
LONGEST_BACKOFF_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A role that ran this long has recovered: its next crash counts as a first one."""
LOG_LINES: Final = 20

_log = structlog.get_logger(__name__)


class StackError(Exception):
    """The service could not start or go on; the message says why and what to do."""


class Stack:
    """All roles of the service as child processes of this one.

    Use it as a context manager, or call `start` and `stop`. A crashed role is started again with growing
    pauses; the crash of a role that cannot be (the endpoint) is the `failure` of the stack. The children end
    with this process however it ends.

    Args:
        settings: Settings that all children get.
        mlflow_port: Also run an MLflow server on this port.
        roles: What to run instead of the standard roles.
        progress: Called with a line that says what is being waited for.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        mlflow_port: int | None = None,
        roles: Sequence[Role] | None = None,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._settings = settings
        self._roles = standard_roles(settings, mlflow_port) if roles is None else tuple(roles)
        self._prepares_model = roles is None
        self._progress = progress
        self._lock = FileLock(settings.home / "up.lock")
        self._watcher: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failed = threading.Event()
        self._crashes: list[str] = []
        self.processes: dict[str, RoleProcess] = {}
        """By role name: control, serve, learn and, where asked for, mlflow."""
        self.admin_key = ""
        self.admin_key_is_new = False
        """Whether the key was made at this start and so has never been shown."""
        self.failure: StackError | None = None
        """Why the service cannot go on; None while it can."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Prepare the model, start every role and wait until all are ready.

        Raises:
            StackError: another stack runs on this home, a port is taken, the model cannot be prepared, or a
                role did not become ready; everything that was started is stopped.
        """
        from controller.admin_key import AdminKeyError, ensure_admin_key  # noqa: PLC0415  the composition root

        home = self._settings.home
        home.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise StackError(
                f"another `adaptive up` runs on {home}: stop it, or choose another directory with --home"
            ) from None
        try:
            try:
                self.admin_key, self.admin_key_is_new = ensure_admin_key(self._settings)
            except AdminKeyError as error:
                raise StackError(str(error)) from error
            self._make_topics()
            for role in self._roles:
                _check_port(self._settings.host, role)
            if self._prepares_model:
                self._prepare_model()
            environment = child_environment(self._settings)
            self.processes = {
                role.name: RoleProcess(role, environment, home / "logs" / f"{role.name}.log")
                for role in self._roles
            }
            # The watcher starts the processes: the kernel ends them with the thread that started them.
            self._watcher = threading.Thread(target=self._watch, name="stack-watcher", daemon=True)
            self._watcher.start()
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _make_topics(self) -> None:
        """Make what is missing in a Kafka cluster; the embedded log makes its topics itself."""
        from collectors.provision import is_kafka, make_topics  # noqa: PLC0415  the composition root
        from collectors.transport import TransportError  # noqa: PLC0415

        if not is_kafka(self._settings):
            return
        self._progress("preparing topics")
        try:
            make_topics(self._settings)
        except TransportError as error:
            raise StackError(
                f"the log's topics cannot be made: {error}; make them with `adaptive topics create` under a "
                "user that may, then start again"
            ) from error

    def stop(self) -> None:
        """Drain every role, then kill whatever is left of any. Idempotent."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a failure of the stack; False if there was none within `timeout` seconds."""
        return self._failed.wait(timeout)

    def crashes(self) -> list[str]:
        """Names of the roles that ended without being told to, one entry per crash, oldest first."""
        return list(self._crashes)

    def _prepare_model(self) -> None:
        name = self._settings.model
        if Path(name).is_dir():
            return
        self._progress(f"preparing the model {name} (once)")
        command = [sys.executable, "-m", "adaptive.cli", "models", "prepare", name]
        # Another process: converting takes memory that this one, which stays, would never give back.
        result = subprocess.run(  # noqa: S603  our own command
            [*command, "--home", str(self._settings.home.resolve())],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if result.returncode != 0:
            lines = [line for line in result.stderr.splitlines() if line.strip()]
            raise StackError(f"the model cannot be prepared: {lines[-1] if lines else 'see above'}")

    def _await_ready(self) -> None:
        began = time.monotonic()
        waiting = dict(self.processes)
        while waiting:
            seconds = time.monotonic() - began
            self._progress(f"waiting for {', '.join(waiting)} ({seconds:.0f} s)")
            if self._failed.wait(WATCH_SECONDS):
                assert self.failure is not None
                raise self.failure
            for name, process in list(waiting.items()):
                if name in self._crashes:
                    raise self._crashed(process)
                if process.running and process.role.ready(process.started_at):
                    del waiting[name]
                elif seconds > process.role.start_seconds:
                    raise StackError(
                        f"{name} was not ready after {seconds:.0f} s; end of {process.log_path}:\n"
                        + "\n".join(process.last_lines(LOG_LINES))
                    )

    def _watch(self) -> None:
        """Start every role, restart those that crash, and stop all at the end."""
        due = dict.fromkeys(self.processes, 0.0)
        backoff = dict.fromkeys(self.processes, FIRST_BACKOFF_SECONDS)
        try:
            while not self._stopping.is_set() and not self._failed.is_set():
                for name, process in self.processes.items():
                    if process.running:
                        continue
                    if name not in due:
                        self._note_crash(process)
                        if not process.role.restart:
                            self._fail(self._crashed(process))
                            break
                        if time.time() - process.started_at >= STEADY_SECONDS:
                            backoff[name] = FIRST_BACKOFF_SECONDS
                        due[name] = time.monotonic() + backoff[name]
                        backoff[name] = min(backoff[name] * 2, LONGEST_BACKOFF_SECONDS)
                    if time.monotonic() >= due[name]:
                        process.start()
                        del due[name]
                self._stopping.wait(WATCH_SECONDS)
            self._stopping.wait()
        except OSError as error:
            self._fail(
                StackError(f"a role cannot be started ({error}): free memory, processes or disk space")
            )
            self._stopping.wait()
        finally:
            self._drain()

    def _drain(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            if not process.finish(process.role.drain_seconds):
                _log.warning("role did not drain in time and was killed", name=name)

    def _note_crash(self, process: RoleProcess) -> None:
        self._crashes.append(process.role.name)
        _log.warning(
            "role crashed",
            name=process.role.name,
            exit_code=process.exit_code,
            restarts=process.restarts,
            log=str(process.log_path),
        )

    def _fail(self, error: StackError) -> None:
        self.failure = error
        self._failed.set()

    def _crashed(self, process: RoleProcess) -> StackError:
        return StackError(
            f"{process.role.name} ended with exit code {process.exit_code}; end of {process.log_path}:\n"
            + "\n".join(process.last_lines(LOG_LINES))
        )


def _check_port(host: str, role: Role) -> None:
    if role.port is None:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, role.port))
        except OSError as error:
            raise StackError(
                f"{role.name} cannot listen on {host}:{role.port} ({error.strerror}): stop what listens "
                f"there, or choose another port with {role.remedy}"
            ) from error
