"""The supervisor reports what it sees, counts restarts and replaces a learner that hangs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from learners.status import LearnerStatus, TenantStatus, read_status
from learners.supervisor import HANG_SECONDS, Heartbeat, LearnerAwayError, Supervisor

if TYPE_CHECKING:
    from pathlib import Path


def beat(pid: int, silent: float = 0.0) -> Heartbeat:
    """A report of a learner that trains."""
    tenants = {"acme": TenantStatus(training="training step 1/9")}
    return Heartbeat(pid, silent, LearnerStatus("running", 0.0, tenants=tenants))


@dataclass
class ScriptedHandle:
    """Answers heartbeats from a list."""

    answers: list[Heartbeat | None]
    calls: list[str] = field(default_factory=list)

    def heartbeat(self) -> Heartbeat:
        """Give the next answer."""
        answer = self.answers.pop(0)
        if answer is None:
            raise LearnerAwayError("dead")
        return answer

    def restart(self) -> None:
        """Note the call."""
        self.calls.append("restart")

    def stop(self) -> None:
        """Note the call."""
        self.calls.append("stop")


def test_a_death_shows_as_restarting_and_is_counted(tmp_path: Path) -> None:
    """The status goes from running to restarting and back, keeps what is known, and counts one restart."""
    supervisor = Supervisor(ScriptedHandle([beat(1), None, beat(2)]), tmp_path / "status.json")
    seen = []
    for _ in range(3):
        supervisor.watch()
        status = read_status(tmp_path / "status.json")
        assert status is not None
        seen.append((status.state, status.pid, status.restarts, sorted(status.tenants)))
    assert seen == [("running", 1, 0, ["acme"]), ("restarting", 1, 0, ["acme"]), ("running", 2, 1, ["acme"])]


def test_a_learner_that_hangs_is_restarted(tmp_path: Path) -> None:
    """A loop that gives no sign of life for minutes is killed; one that is merely busy is not."""
    handle = ScriptedHandle([beat(1, HANG_SECONDS - 1), beat(1, HANG_SECONDS + 1)])
    supervisor = Supervisor(handle, tmp_path / "status.json")
    supervisor.watch()
    assert handle.calls == []
    supervisor.watch()
    assert handle.calls == ["restart"]


def test_stopping_lets_the_learner_go_and_says_so(tmp_path: Path) -> None:
    """When told to stop, the actor is stopped and the last status is `stopped`, as plain JSON."""
    stop = Event()
    stop.set()
    handle = ScriptedHandle([])
    Supervisor(handle, tmp_path / "status.json", clock=lambda: 12.0).run(stop)
    assert handle.calls == ["stop"]
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "stopped"


def test_there_is_no_status_before_the_first_report(tmp_path: Path) -> None:
    """A reader of a missing file gets None."""
    assert read_status(tmp_path / "status.json") is None
