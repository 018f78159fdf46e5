"""How far the learners are behind, from the status they write: records left in the log, and their age."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from prometheus_client import Metric

STALE_SECONDS: Final = 60.0
"""A status older than this says nothing of now."""
_SUMS: Final = (
    ("training_seconds", "training_seconds", "Seconds of training and evaluation, all tenants."),
    ("updates", "updates", "Updates that ended, all tenants."),
    ("drifts", "drifts", "Times a tenant's acceptance fell against its control group."),
)
"""Counter, field of a tenant's status, help."""


class LearnerCollector(Collector):
    """Reads the learner's status file when asked; nothing is reported where it is missing or stale.

    Args:
        path: The status file.
        clock: Unix seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path: Final = path
        self._clock: Final = clock

    def collect(self) -> Iterator[Metric]:
        """Read the file once."""
        status = self._status()
        intake = status.get("intake", {})
        lag = GaugeMetricFamily(
            "adaptive_learner_lag_records", "Trace records left to read, per partition.", labels=["partition"]
        )
        for partition, records in sorted(intake.get("lag", {}).items()):
            lag.add_metric([str(partition)], records)
        yield lag
        behind = GaugeMetricFamily(
            "adaptive_learner_behind_seconds", "Age of the newest trace read while others wait behind it."
        )
        if "behind_seconds" in intake:
            behind.add_metric([], intake["behind_seconds"])
        yield behind
        tenants = status.get("tenants", {}).values()
        for name, field, text in _SUMS:
            total = CounterMetricFamily(f"adaptive_learner_{name}", text)
            if status:
                total.add_metric([], sum(tenant.get(field, 0) for tenant in tenants))
            yield total
        waiting = GaugeMetricFamily(
            "adaptive_learner_tenants_waiting", "Tenants with new text whose update does not pay, or whose "
            "training seconds of the day are used up.",
        )  # fmt: skip
        if status:
            waiting.add_metric([], sum(bool(tenant.get("waiting_for")) for tenant in tenants))
        yield waiting

    def _status(self) -> dict[str, Any]:
        try:
            status = json.loads(self._path.read_bytes())
            fresh = self._clock() - status["updated_at"] <= STALE_SECONDS
            dict(status["intake"]), dict(status.get("tenants", {}))
            return dict(status) if fresh else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
