"""The learner's status file, as the API shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from controller.learner_metrics import STALE_SECONDS
from controller.schemas import LearnerState

if TYPE_CHECKING:
    from pathlib import Path


class _Tenant(msgspec.Struct):
    training: str = "idle"


class _Intake(msgspec.Struct):
    waiting: int = 0
    lag: dict[int, int] = {}
    behind_seconds: float = 0.0


class _Status(msgspec.Struct):
    """What is shown of `learners.status.LearnerStatus`, which the controller may not import."""

    state: str
    updated_at: float
    paused: bool = False
    updates_due: int = 0
    restarts: int = 0
    error: str | None = None
    tenants: dict[str, _Tenant] = {}
    intake: _Intake = msgspec.field(default_factory=_Intake)


def learner_state(path: Path, now: float) -> LearnerState | None:
    """Describe the learner; None where none has run or its file cannot be read.

    Args:
        path: Its status file.
        now: Unix seconds.
    """
    try:
        status = msgspec.json.decode(path.read_bytes(), type=_Status)
    except (OSError, msgspec.DecodeError):
        return None
    return LearnerState(
        id="learner",
        alive=now - status.updated_at <= STALE_SECONDS,
        state=status.state,
        updated_at=status.updated_at,
        paused=status.paused,
        updates_due=status.updates_due,
        lag_records=sum(status.intake.lag.values()),
        behind_seconds=status.intake.behind_seconds,
        waiting=status.intake.waiting,
        restarts=status.restarts,
        error=status.error,
        training={
            tenant: entry.training
            for tenant, entry in status.tenants.items()
            if entry.training not in {"idle", "off"}
        },
    )
