"""Where the learner keeps things under the state directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
