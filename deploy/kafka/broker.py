"""Runs one Apache Kafka broker, its own controller, on loopback.

`python -m deploy.kafka format|start|stop` for people, `Broker` for tests. All state is in one directory:
server.properties, data/, broker.log, broker.pid. The jars come from `make kafka`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE: Final = Path(__file__).parent
LIBS: Final = HERE / "libs"
_STARTED: Final = b"Kafka Server started"
_PORTS: Final = (20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections: a client that tries again and again to reach a
stopped broker could otherwise be given the broker's own port and connect to itself."""
_PROPERTIES: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    # Topics are made by `adaptive topics create`, never by being used.
    "auto.create.topics.enable": "false",
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A small heap: the default map of the log cleaner alone takes 128 MiB.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
}


class BrokerError(Exception):
    """The broker cannot be had; the message says what to do."""


class Broker:
    """One broker in a directory of its own.

    Args:
        directory: Its state; made where missing.
        port: Port on loopback; 0: the one in the directory, or a free one.
        heap_mib: Java heap.
        properties: Broker properties on top of the defaults, e.g. more listeners.
        java_options: Options of the JVM on top of the heap's.
        outlives: Whether it goes on when this process ends, or is killed, without stopping it.
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        *,
        heap_mib: int = 256,
        properties: Mapping[str, str] | None = None,
        java_options: tuple[str, ...] = (),
        outlives: bool = True,
    ) -> None:
        self.directory: Final = directory
        self.log: Final = directory / "broker.log"
        self._config: Final = directory / "server.properties"
        self._pid_file: Final = directory / "broker.pid"
        self.port: Final = port or _port_of(self._config) or free_port()
        self._properties: Final = dict(properties or {})
        self._java: Final = ("-Xms64m", f"-Xmx{heap_mib}m", "-XX:+UseSerialGC", *java_options)
        self._outlives: Final = outlives
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running broker, also one that another process started."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            if str(self._config.resolve()).encode() in arguments:
                return pid
        return None

    def format(self) -> None:
        """Write the configuration and prepare the data directory; does nothing to one that is prepared.

        Raises:
            BrokerError: jars or Java are missing, or the directory cannot be used.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text(self._render())
        if (self.directory / "data" / "meta.properties").exists():
            return
        # Given with "=": one id in 64 begins with a dash, which would be taken for an option.
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._command(
            "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._config)
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our command
        if done.returncode:
            raise BrokerError(f"Kafka cannot format {self.directory}: {done.stderr or done.stdout}")

    def start(self, timeout: float = 60.0) -> None:
        """Start and wait until it serves, at most `timeout` seconds.

        Raises:
            BrokerError: it runs already, ended at once, or took too long; ends with its last log lines.
        """
        if self.pid is not None:
            raise BrokerError(f"a broker runs in {self.directory} already (pid {self.pid}): stop it first")
        self._unguard()
        self.format()
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(  # noqa: S603  our command
                self._command("kafka.Kafka", str(self._config.resolve())),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pid_file.write_text(f"{self._process.pid}\n")
        if not self._outlives:
            # Its input ends with this process however that ends; PR_SET_PDEATHSIG acts on a thread's end.
            self._guard = subprocess.Popen(  # noqa: S603  our command
                ["/bin/sh", "-c", 'read -r _; kill -KILL "$0"', str(self._process.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        while _STARTED not in self._said_since(begin):
            if self._process.poll() is not None or time.monotonic() > deadline:
                state = "ended" if self._process.poll() is not None else f"not ready in {timeout:.0f} s"
                self.kill()
                tail = self._said_since(begin).decode(errors="replace")[-2000:]
                raise BrokerError(f"Kafka {state} (log: {self.log}): {tail}")
            time.sleep(0.05)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop in order; kill it where that takes longer than `timeout` seconds."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL, 10.0)

    def freeze(self) -> None:
        """Stop its execution; connections stay open and nothing answers (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            raise BrokerError(f"no broker runs in {self.directory}")
        os.kill(self.pid, number)

    def _end(self, number: signal.Signals, timeout: float) -> None:
        self._unguard()  # before the pid may become another process's
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)  # a frozen one would not see the other
        deadline = time.monotonic() + timeout
        while self.pid is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.pid is not None and number is not signal.SIGKILL:
            self._end(signal.SIGKILL, 10.0)
        self._pid_file.unlink(missing_ok=True)

    def _unguard(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _said_since(self, begin: int) -> bytes:
        with self.log.open("rb") as log:
            log.seek(begin)
            return log.read()

    def _command(self, main: str, *arguments: str) -> list[str]:
        if not any(LIBS.glob("kafka_*.jar")):
            raise BrokerError(f"no Kafka jars in {LIBS}: run `make kafka` (needs Maven and Java 17 or newer)")
        logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
        return [_java(), *self._java, logging, "-cp", f"{LIBS}/*", main, *arguments]

    def _render(self) -> str:
        controller = free_port()
        own = {
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str((self.directory / "data").resolve()),
        }
        properties = {**_PROPERTIES, **own}
        for name, value in self._properties.items():
            # More listeners join the broker's own instead of replacing them.
            joined = name in {"listeners", "advertised.listeners"}
            properties[name] = f"{properties[name]},{value}" if joined else value
        return "".join(f"{name}={value}\n" for name, value in properties.items())


def free_port() -> int:
    """A port that nobody listens on now."""
    numbers = random.SystemRandom()
    for _ in range(200):
        port = numbers.randint(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise BrokerError(f"no free port from {_PORTS[0]} to {_PORTS[1]}: name one (--port)")


def _port_of(config: Path) -> int:
    """The port in a directory's configuration, 0 where there is none."""
    with contextlib.suppress(OSError):
        for line in config.read_text().splitlines():
            name, _, value = line.partition("=")
            if name == "advertised.listeners":
                return int(value.split(",")[0].rpartition(":")[2])
    return 0


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"
