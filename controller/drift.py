"""Whether the acceptance length of a tenant's arm has changed: ADWIN over its scored traces.

Bifet and Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007, as River has it. The
state is the window's values themselves, plain numbers; the detector is made anew from them, so that any
controller goes on where another ended, and a replay finds the same drifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE: Final = 0.002
"""Bound on the chance of a false alarm at a look (River's default)."""
GRACE_TRACES: Final = 20
RESTART_TRACES: Final = 10
"""Newest traces that are kept after a drift."""
WINDOW: Final = 256
"""Most traces remembered per arm."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A change of mean acceptance length."""

    before: float
    after: float


def prepare() -> None:
    """Load River, which takes seconds, outside of any transaction."""
    _detector()


def observe(window: Sequence[float], tau: float) -> tuple[list[float], Drift | None]:
    """Take in an arm's acceptance length on one more trace.

    Args:
        window: What is remembered, oldest first.
        tau: At least 1.

    Returns:
        What to remember from now on, and the drift if this trace brought one to light.
    """
    detector = _detector()
    for value in window:
        detector.update(value)
    detector.update(tau)
    values = [*window, tau]
    if not detector.drift_detected or len(values) <= RESTART_TRACES:
        return values[-WINDOW:], None
    # ADWIN sheds the old mean bit by bit, with a detection each time: begin again from the newest traces.
    kept, dropped = values[-RESTART_TRACES:], values[:-RESTART_TRACES]
    return kept, Drift(sum(dropped) / len(dropped), sum(kept) / len(kept))


def _detector() -> Any:
    from river.drift import ADWIN  # noqa: PLC0415  loads slowly

    return ADWIN(delta=CONFIDENCE, clock=1, grace_period=GRACE_TRACES)
