"""The learner as a Ray actor, and a local Ray to run it in."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from adaptive.log import configure
from learners.paths import LearnerPaths
from learners.supervisor import Heartbeat, LearnerAwayError

if TYPE_CHECKING:
    from adaptive.settings import Settings

_log = structlog.get_logger(__name__)

OBJECT_STORE_BYTES: Final = 80 << 20
"""Ray's minimum is 75 MiB; nothing large passes through it."""
HEARTBEAT_SECONDS: Final = 10.0
STOP_SECONDS: Final = 60.0


class LearnerActor:
    """Runs a learner in a thread of its own, so that heartbeats are answered while it trains.

    Ray restarts the process whenever it dies; the constructor then takes up ledger, offsets and checkpoint.
    """

    def __init__(self, settings: Settings, directory: str) -> None:
        os.chdir(directory)  # settings may name relative paths
        paths = LearnerPaths(settings.home)
        configure("learner", json=True)
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(paths.log.open("a", buffering=1)))
        # Here and not above: the supervising process needs no torch.
        from learners.assembly import build_learner  # noqa: PLC0415

        self._stop = threading.Event()
        self._learner, self._close = build_learner(settings, self._stop)
        self._threads = settings.learner_threads
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    def heartbeat(self) -> Heartbeat:
        """Report."""
        if not self._thread.is_alive():
            raise RuntimeError("the learner's thread has ended")
        return Heartbeat(os.getpid(), time.monotonic() - self._learner.beat, self._learner.status)

    def stop(self) -> None:
        """End after the piece of work at hand, and leave the log's group."""
        self._stop.set()
        self._thread.join(STOP_SECONDS)
        self._close()

    def _run(self) -> None:
        import torch  # the thread count is a property of the thread  # noqa: PLC0415

        torch.set_num_threads(self._threads)
        structlog.contextvars.bind_contextvars(role="learner")
        self._learner.run()


class RayLearner:
    """Starts Ray on this machine with one learner actor (a context manager: Ray ends with it).

    Every port is on loopback, no dashboard is started and nothing is reported to anybody.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        # Read by Ray when it is imported. The first one, despite its name, makes a local Ray bind loopback.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Workers inherit this process's priority; Ray would lower theirs by 15 more and starve training.
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray spells it so
        import ray  # after the environment above  # noqa: PLC0415

        self._ray: Final[Any] = ray
        ray.init(
            address="local",
            num_cpus=1,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
        )
        self._actor = self._start()

    def heartbeat(self) -> Heartbeat:
        """Ask the actor for a report; LearnerAwayError while it is dead, starting or deaf."""
        errors = self._ray.exceptions
        try:
            beat = self._ray.get(self._actor.heartbeat.remote(), timeout=HEARTBEAT_SECONDS)
        except (errors.ActorUnavailableError, errors.GetTimeoutError) as error:
            raise LearnerAwayError(_first_line(error)) from error
        except errors.ActorDiedError as error:
            # Ray restarts a process that died; an actor whose constructor failed is ours to start again.
            _log.exception("learner cannot start")
            self._actor = self._start()
            raise LearnerAwayError(_first_line(error)) from error
        except errors.RayTaskError as error:
            self.restart()
            raise LearnerAwayError(_first_line(error)) from error
        assert isinstance(beat, Heartbeat)
        return beat

    def restart(self) -> None:
        """Kill the actor's process; Ray starts it again."""
        self._ray.kill(self._actor, no_restart=False)

    def stop(self) -> None:
        """Let the actor end what it does, then end Ray."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.stop.remote(), timeout=STOP_SECONDS)
        self._ray.shutdown()

    def _start(self) -> Any:
        actor = self._ray.remote(LearnerActor).options(num_cpus=0, max_restarts=-1, name="learner-0")
        return actor.remote(self._settings, str(Path.cwd()))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
