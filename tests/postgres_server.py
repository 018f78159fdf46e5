"""A real PostgreSQL on loopback for tests: its own files, its own port, a user that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS = 60.0


def _program(name: str) -> str:
    """Find a program of the server: on the path, or where Debian puts it."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = shutil.which(name) or next((str(path) for path in debian), None)
    if found is None:
        raise RuntimeError(f"{name} is not installed: apt-get install postgresql (as .ci/run does)")
    return found


def _user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: as root, the tests run it as somebody who is not."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class PostgresServer:
    """One server; it can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        directory.mkdir(parents=True)
        if owner := _user():
            os.chown(directory, owner["user"], owner["group"])
        command = [_program("initdb"), "-D", str(directory / "data"), "-U", "adaptive", "-A", "trust", "-N"]
        self._run([*command, "-E", "UTF8", "--locale=C"])
        self.start()

    @property
    def url(self) -> str:
        """SQLAlchemy URL."""
        return f"postgresql+psycopg://adaptive@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self._directory}"]
        command = [_program("postgres"), "-D", str(self._directory / "data"), "-p", str(self.port), *options]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._directory, start_new_session=True, **_user()
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(host="127.0.0.1", port=self.port, user="adaptive", dbname="postgres").close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._directory / "log").read_text()) from None
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """End it at once, dropping every connection (what is committed stays)."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self._directory, check=False, **_user()
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stderr}{done.stdout}")


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server for a while; its directory must be open to a user who is not root."""
    directory = Path("/tmp") / f"adaptive-postgres-{os.getpid()}-{time.monotonic_ns()}"  # noqa: S108  see above
    server = PostgresServer(directory)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)
