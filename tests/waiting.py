"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS: Final = 60.0
"""Far more than anything takes on a busy machine: a deadline is for what never happens."""


def eventually(
    condition: Callable[[], object], seconds: float = PATIENCE_SECONDS, what: str = "the condition"
) -> None:
    """Poll until a condition holds, first every few milliseconds, then less often.

    Raises:
        AssertionError: It did not within `seconds`.
    """
    deadline, pause = time.monotonic() + seconds, 0.002
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come to hold in {seconds:.0f} s"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
