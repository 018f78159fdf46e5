"""Where the learner keeps its state, and where it finds target and turbo."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from adaptive.models import CATALOGUE, model_directory
from adaptive.speculator.config import CheckpointError

if TYPE_CHECKING:
    from adaptive.settings import Settings

_WEIGHTS: Final = "model.safetensors"
_SHIPPED_TURBO: Final = Path(__file__).resolve().parent.parent / "deploy" / "turbo"


@dataclass(frozen=True, slots=True)
class LearnerPaths:
    """Files and directories of `<home>/learner`."""

    home: Path

    @property
    def root(self) -> Path:
        """Directory of everything below."""
        return self.home / "learner"

    @property
    def ledger(self) -> Path:
        """SQLite ledger."""
        return self.root / "ledger.db"

    @property
    def replay(self) -> Path:
        """Stored requests."""
        return self.root / "replay"

    def replay_of(self, tenant: str) -> Path:
        """Stored requests of one tenant; tenant ids may hold what file systems do not take."""
        return self.replay / hashlib.sha256(tenant.encode()).hexdigest()[:16]

    @property
    def updates(self) -> Path:
        """Checkpoints and challengers of updates under way."""
        return self.root / "updates"

    @property
    def champions(self) -> Path:
        """Local copies of adapters that serve."""
        return self.root / "champions"

    @property
    def status(self) -> Path:
        """Report, replaced about every second (`learners.status`)."""
        return self.root / "status.json"

    @property
    def pause(self) -> Path:
        """While this file exists nothing is trained; `paused` in the status says when that is so."""
        return self.root / "pause"

    @property
    def log(self) -> Path:
        """Log of the learner actor."""
        return self.root / "actor.log"


def drafter_directories(settings: Settings) -> tuple[Path, Path]:
    """Directories of the target and of turbo that `settings` name.

    Raises:
        CheckpointError: one of them is not there.
    """
    named = Path(settings.model)
    target = named if named.is_dir() else model_directory(settings.model, settings.home)
    if not (target / _WEIGHTS).is_file():
        remedy = (
            f"run `adaptive models prepare {settings.model}`" if settings.model in CATALOGUE else "correct it"
        )
        raise CheckpointError(f"model: {target} holds no {_WEIGHTS}; {remedy} (ADAPTIVE_MODEL)")
    turbo = settings.turbo or _SHIPPED_TURBO / target.name
    if not (turbo / _WEIGHTS).is_file():
        raise CheckpointError(
            f"turbo: {turbo} holds no {_WEIGHTS}; set ADAPTIVE_TURBO to a turbo checkpoint directory"
        )
    return target, turbo
