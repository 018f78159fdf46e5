"""`adaptive learn` refuses what it cannot do before it starts anything."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest

from adaptive.settings import Settings
from adaptive.speculator.config import CheckpointError
from learners.app import run

if TYPE_CHECKING:
    from pathlib import Path


def test_several_learners_are_refused_in_one_line(tmp_path: Path) -> None:
    """The line names the setting and the remedy, and nothing was made in the home."""
    with pytest.raises(SystemExit) as caught:
        run(Settings(home=tmp_path, learners=2), Event())
    line = str(caught.value)
    assert line.startswith("error: learners: 2 ")
    assert "leave it at 1 (ADAPTIVE_LEARNERS)" in line
    assert "\n" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("learners", [None, 1])
def test_one_learner_is_not_refused(tmp_path: Path, learners: int | None) -> None:
    """Start goes on to the next check: there is no target in this home."""
    with pytest.raises(CheckpointError, match="model"):
        run(Settings(home=tmp_path, learners=learners), Event())


def test_the_help_promises_no_more_than_there_is() -> None:
    """The description that --help shows offers no more learners."""
    fields = Settings.model_fields
    assert "not supported yet" in (fields["learners"].description or "")
