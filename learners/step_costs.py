"""What a verify step costs each tenant in engine time, from what the engines report."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from adaptive.contracts import TOPIC_ENGINE_TELEMETRY, Arm, EngineTelemetry, decode
from collectors.transport import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectors.transport import Transport

_log = structlog.get_logger(__name__)

STEP_SECONDS_AT_FIRST: Final = 0.03
"""Of a target of 135 M parameters on two CPU cores; counts until an engine has reported."""
REFRESH_SECONDS: Final = 60.0
NEWEST_RECORDS: Final = 32
"""Per partition: engines report about once a second, each to one partition."""


class StepCosts:
    """Looks at the newest reports now and then; the log being away changes nothing."""

    def __init__(self, transport: Transport, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport: Final = transport
        self._clock: Final = clock
        self._looked_at = -REFRESH_SECONDS
        self._costs: dict[str, float] = {}
        self._mean = STEP_SECONDS_AT_FIRST

    def __call__(self, tenant: str) -> float:
        """Seconds per verify step of a tenant; the mean of all where it has none yet."""
        if self._clock() - self._looked_at >= REFRESH_SECONDS:
            self._looked_at = self._clock()
            try:
                self._look()
            except TransportError as error:
                _log.warning("engine telemetry away, step costs stay as they were", error=str(error))
        return self._costs.get(tenant, self._mean)

    def _look(self) -> None:
        newest: dict[str, EngineTelemetry] = {}
        for partition, end in self._transport.end_offsets(TOPIC_ENGINE_TELEMETRY).items():
            if not end:
                continue
            first = max(0, end - NEWEST_RECORDS)
            for record in self._transport.read(TOPIC_ENGINE_TELEMETRY, partition, first, end - 1):
                if record.value is None:
                    continue
                try:
                    report = decode(record.value, EngineTelemetry)
                except msgspec.MsgspecError:
                    continue
                newest[report.engine_id] = report
        costs = step_costs(newest.values())
        if costs:
            self._costs, self._mean = costs, sum(costs.values()) / len(costs)


def step_costs(reports: Iterable[EngineTelemetry]) -> dict[str, float]:
    """Engine seconds per verify step in which a drafter drafted, by tenant, over several engines."""
    seconds: defaultdict[str, float] = defaultdict(float)
    steps: defaultdict[str, int] = defaultdict(int)
    for report in reports:
        for counter in report.counters:
            if counter.arm in {Arm.TURBO, Arm.ADAPTER} and counter.engine_seconds > 0:
                seconds[counter.tenant] += counter.engine_seconds
                steps[counter.tenant] += counter.verify_steps
    return {tenant: seconds[tenant] / count for tenant, count in steps.items() if count}
