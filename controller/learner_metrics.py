"""How far the learners are behind, from the status they write: records left in the log, and their age."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from prometheus_client import Metric

STALE_SECONDS: Final = 60.0
"""A status older than this says nothing of now."""


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
        intake = self._intake()
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

    def _intake(self) -> dict[str, Any]:
        try:
            status = json.loads(self._path.read_bytes())
            fresh = self._clock() - status["updated_at"] <= STALE_SECONDS
            return dict(status["intake"]) if fresh else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
