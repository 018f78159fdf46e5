"""Prometheus metrics of the controller, on a registry of their own.

No tenant labels: their number is not bounded. Per tenant there is GET /v1/tenants/{id}.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from controller.models import DecisionKind

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
        self.decisions = Counter(
            "adaptive_control_decisions", "Decisions taken.", ["kind"], registry=self.registry
        )
        for kind in DecisionKind:
            self.decisions.labels(kind.value)
        self.records = Counter(
            "adaptive_control_records", "Log records consumed.", ["topic"], registry=self.registry
        )
        self.failures = Counter(
            "adaptive_control_worker_failures",
            "Rounds of a background worker that failed and are retried.",
            ["worker"],
            registry=self.registry,
        )
        self.outbox = Gauge(
            "adaptive_control_outbox_pending",
            "Messages committed but not yet on the log.",
            registry=self.registry,
        )
        self.tenants = Gauge("adaptive_control_tenants", "Tenants.", registry=self.registry)
        self.engines = Gauge(
            "adaptive_control_engines_alive", "Engines that reported lately.", registry=self.registry
        )

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)
