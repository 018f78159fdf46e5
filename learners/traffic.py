"""What the newest traced requests of a tenant say: how much it sends, how well its drafts do, and drift."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Final

from river.drift import ADWIN

from adaptive.contracts import Arm
from learners.payoff import TAU_AT_FIRST
from learners.records import Observation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adaptive.contracts import TraceRecord

WINDOW: Final = 500
"""Traces of a tenant that are remembered."""
SPAN_LEAST: Final = 1.0
"""Seconds that traffic is taken to have lasted at least."""
CONTROL_WEIGHT: Final = 0.1
"""Of the newest control request in their exponentially weighted mean."""
DRIFT_DELTA: Final = 0.002
DRIFT_CLOCK: Final = 8
"""Requests between two looks of ADWIN."""
TURBO_AGAIN: Final = 100
"""After so many requests in a row without an adapter, turbo serves the tenant."""


def observe(record: TraceRecord) -> list[Observation]:
    """Sum up a trace's verify steps by the drafter that made them; copied drafts say nothing of a drafter."""
    sums: dict[tuple[Arm, int], list[int]] = {}
    for step in record.steps:
        if step.drafted and step.arm in {Arm.TURBO, Arm.ADAPTER}:
            steps = sums.setdefault((step.arm, step.version), [0, 0, 0])
            steps[0] += 1
            steps[1] += len(step.drafted)
            steps[2] += step.accepted
    return [
        Observation(0, record.tenant, record.created_at, arm, version, *counts)
        for (arm, version), counts in sums.items()
    ]


class Drift:
    """ADWIN on a tenant's acceptance rate, less that of its control group (Bifet and Gavalda, 2007).

    A fall that the control group shares is the engine's or the target's, and no reason to train. While turbo
    serves there is no other group: then its own acceptance is watched, for traffic that has become another.
    """

    def __init__(self) -> None:
        self._version = 0
        self._control: float | None = None
        self._since_adapter = 0
        self._adwin = _adwin()

    def add(self, row: Observation) -> bool:
        """Take the next request in; whether acceptance fell for good."""
        rate = row.accepted / row.drafted
        if row.arm is Arm.TURBO:
            self._control = (
                rate if self._control is None else self._control + CONTROL_WEIGHT * (rate - self._control)
            )
            self._since_adapter += 1
            if self._version and self._since_adapter >= TURBO_AGAIN:
                self._version, self._adwin = 0, _adwin()
            return not self._version and self._fell(rate)
        self._since_adapter = 0
        if row.version != self._version:  # another drafter: what the last one did is no yardstick
            self._version, self._adwin = row.version, _adwin()
        return self._control is not None and self._fell(rate - self._control)

    def _fell(self, value: float) -> bool:
        before = self._adwin.estimation
        self._adwin.update(value)
        return bool(self._adwin.drift_detected and self._adwin.estimation < before)


class Traffic:
    """One tenant's newest requests; a function of the observations it was given, in order."""

    def __init__(self) -> None:
        self._rows: deque[Observation] = deque(maxlen=WINDOW)
        self._drift = Drift()
        self.drifts = 0
        self.drifted_at = 0.0
        """When acceptance last fell (Unix seconds of the trace); 0: never."""

    def add(self, row: Observation) -> None:
        """Take the next observation in."""
        self._rows.append(row)
        for known in ("tokens_per_second", "tau"):
            self.__dict__.pop(known, None)
        if self._drift.add(row):
            self.drifts += 1
            self.drifted_at = row.created_at

    @cached_property  # asked for every tenant at every training step
    def tokens_per_second(self) -> float:
        """Answer tokens that were drafted for, over the time that the remembered traces cover."""
        if not self._rows:
            return 0.0
        times = [row.created_at for row in self._rows]
        tokens = sum(row.verify_steps + row.accepted for row in self._rows)
        return tokens / max(SPAN_LEAST, max(times) - min(times))

    @cached_property
    def tau(self) -> float:
        """Of the adapter that drafted last, or of turbo."""
        versions = [row.version for row in self._rows if row.arm is Arm.ADAPTER]
        serving = versions[-1] if versions else 0
        return tau(row for row in self._rows if row.version == serving)


def tau(rows: Iterable[Observation]) -> float:
    """Acceptance length over observations."""
    kept: Sequence[Observation] = list(rows)
    steps = sum(row.verify_steps for row in kept)
    return 1 + sum(row.accepted for row in kept) / steps if steps else TAU_AT_FIRST


def _adwin() -> ADWIN:
    return ADWIN(delta=DRIFT_DELTA, clock=DRIFT_CLOCK)
