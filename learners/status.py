"""What the learner says about itself: `<home>/learner/status.json`, replaced about once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


class TenantStatus(msgspec.Struct):
    """Learning of one tenant."""

    requests: int = 0
    """Requests stored for replay so far."""
    tokens_seen: int = 0
    """Their answer tokens."""
    tokens_since_update: int = 0
    left_out: dict[str, int] = {}
    """Traces and requests left out, by reason."""
    training: str = "idle"
    """idle, off, frozen, waiting, "training step 3/40", evaluating or publishing."""
    versions: list[int] = []
    """Published versions, newest last, at most 20."""
    last_gain: float | None = None
    """Relative gain of the newest challenger over what served, on its hold-out."""
    last_refusal: str | None = None
    """Why the newest challenger was refused; None if it was published."""
    updates: int = 0
    drifts: int = 0
    """Times acceptance fell against the control group."""
    training_seconds: float = 0.0
    """Spent on the tenant's updates, evaluation included."""
    training_seconds_today: float = 0.0
    """The same in the last 24 hours."""
    expected_gain: float = 0.0
    """Relative gain in tau expected of the next update."""
    expected_saving_seconds: float = 0.0
    """Engine time that gain would save in `Settings.payback_hours`."""
    expected_cost_seconds: float = 0.0
    """Training time it would cost."""
    waiting_for: str = ""
    """Why no update is due although there is new text: quota, or it does not pay."""


class IntakeStatus(msgspec.Struct):
    """How intake keeps up; totals since this learner started."""

    traces: int = 0
    """Traces polled, duplicates included."""
    duplicates: int = 0
    """Traces that the log delivered again; they changed nothing."""
    dead_lettered: int = 0
    excess: int = 0
    """Requests left out because too many of their tenant waited."""
    recomputed: dict[str, int] = {}
    """Requests whose features the target computed again, by what was wrong with the captured ones."""
    waiting: int = 0
    """Requests that wait for assembly."""
    oldest_waiting_seconds: float = 0.0
    lag: dict[int, int] = {}
    """Records left to poll per partition."""
    behind_seconds: float = 0.0
    """Age of the newest record polled while others wait behind it, else 0."""


class LearnerStatus(msgspec.Struct):
    """Learning as a whole."""

    state: str
    """starting, running, restarting or stopped."""
    updated_at: float
    """Unix seconds of this report."""
    pid: int = 0
    """Of the learner actor's process."""
    restarts: int = 0
    paused: bool = False
    """True once the pause file is obeyed: nothing is trained, evaluated or published, and nothing begins."""
    updates_due: int = 0
    """Tenants that have an update going on or due now."""
    error: str | None = None
    """Newest unexpected error."""
    tenants: dict[str, TenantStatus] = {}
    intake: IntakeStatus = msgspec.field(default_factory=IntakeStatus)


def write_status(path: Path, status: LearnerStatus) -> None:
    """Replace the status file; a reader sees the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=2))
    partial.replace(path)


def read_status(path: Path) -> LearnerStatus | None:
    """Read the status file; None while no learner has written one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LearnerStatus)
    except FileNotFoundError:
        return None
