"""Prometheus metrics of the controller, on a registry of their own.

No tenant labels: their number is not bounded. Per tenant there is GET /v1/tenants/{id}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from adaptive.payback import ArmTime, engine_seconds_saved
from controller import outbox
from controller.models import ArmTotal, DecisionCount, DecisionKind, Engine, EngineSpeed, Tenant
from controller.views import ALIVE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric
    from sqlalchemy.orm import Session

    from controller.database import Database

UNMATCHED_ROUTE: Final = "unmatched"


class Metrics:
    """Every metric of one controller process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "adaptive_control_requests",
            "Admin API requests.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "adaptive_control_request_seconds",
            "Duration of admin API requests.",
            ["route"],
            registry=self.registry,
        )
        self.records = Counter(
            "adaptive_control_records", "Log records consumed.", ["topic"], registry=self.registry
        )
        self.turned_away = Counter(
            "adaptive_control_turned_away",
            "Requests without a valid key, without the scope, or above the rate limit.",
            ["reason"],
            registry=self.registry,
        )
        self.failures = Counter(
            "adaptive_control_worker_failures",
            "Rounds of a background worker that failed and are retried.",
            ["worker"],
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class DatabaseCollector(Collector):
    """Counts read from the database when they are asked for, so they outlive restarts.

    Args:
        database: The controller's database.
        clock: Unix seconds.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Read the database once."""
        recent = Engine.received_at > self._clock() - ALIVE_SECONDS
        with self._database.read() as session:
            waiting = outbox.pending(session)
            tenants = session.scalar(select(func.count(Tenant.id))) or 0
            slow = session.scalar(select(func.count()).where(EngineSpeed.alert_since.is_not(None))) or 0
            engines = session.scalar(select(func.count(Engine.id)).where(recent)) or 0
            taken = dict(session.execute(select(DecisionCount.kind, DecisionCount.taken)).all())
            saved = _saved(session)
        decisions = CounterMetricFamily("adaptive_control_decisions", "Decisions taken.", labels=["kind"])
        for kind in DecisionKind:
            decisions.add_metric([kind.value], taken.get(kind.value, 0))
        yield decisions
        yield GaugeMetricFamily(
            "adaptive_control_engine_seconds_saved",
            "Engine time adapters saved over turbo, all tenants.",
            saved,
        )
        yield GaugeMetricFamily(
            "adaptive_control_outbox_pending", "Messages committed but not yet on the log.", waiting
        )
        yield GaugeMetricFamily("adaptive_control_tenants", "Tenants.", tenants)
        yield GaugeMetricFamily("adaptive_control_engines_alive", "Engines that reported lately.", engines)
        yield GaugeMetricFamily(
            "adaptive_control_engines_slow", "Engines whose steps take longer than usual: an alert.", slow
        )


def _saved(session: Session) -> float:
    """Engine seconds that all adapters saved; tenants without anything to compare count as 0."""
    arms: dict[str, list[ArmTime]] = {}
    for row in session.scalars(select(ArmTotal)):
        arms.setdefault(row.tenant, []).append(ArmTime(row.arm, row.emitted, row.engine_seconds))
    return sum(engine_seconds_saved(times) or 0.0 for times in arms.values())
