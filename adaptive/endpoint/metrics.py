"""What the engine last reported, as Prometheus metrics beside vLLM's own on the endpoint's `/metrics`.

Names follow vLLM's `vllm:spec_decode_*`: a draft is one verify step that had drafts, so
tau = 1 + accepted_tokens / drafts. Labels are bounded: versions are not labels, and only the first
`most_tenants` tenants of an engine's life have their own; the rest are summed as `other`, which no tenant may
be called. A tenant keeps its label, so that no counter ever falls.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from adaptive.contracts import CONTEXT_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from adaptive.contracts import ArmCounters, EngineTelemetry, SlotUsage

OTHER: Final = "(other)"
"""In brackets: no tenant id has them."""
CONTEXT_LABELS: Final = ("0-1k", "1k-4k", "4k-16k", "16k+")
assert len(CONTEXT_LABELS) == len(CONTEXT_BUCKETS) + 1, "one label per bucket of CONTEXT_BUCKETS"

_TOTALS: Final = {
    "requests": "Requests admitted with this arm.",
    "verify_steps": "Verify steps that had drafts.",
    "drafted": "Draft tokens verified.",
    "accepted": "Draft tokens accepted.",
    "emitted": "Output tokens.",
    "early_stops": "Verify steps with fewer drafts than the arm might have made: the next did not pay.",
    "engine_seconds": "Engine time of the arm's rows, a step's time split evenly between its rows.",
}
_NAMES: Final = {
    "requests": "adaptive_spec_decode_requests",
    "verify_steps": "adaptive_spec_decode_num_drafts",
    "drafted": "adaptive_spec_decode_num_draft_tokens",
    "accepted": "adaptive_spec_decode_num_accepted_tokens",
    "emitted": "adaptive_spec_decode_output_tokens",
    "early_stops": "adaptive_spec_decode_early_stops",
    "engine_seconds": "adaptive_spec_decode_engine_seconds",
}


class TelemetryCollector(Collector):
    """Renders the newest telemetry of the engine.

    Args:
        latest: The newest telemetry, None before the first report.
        most_tenants: How many tenants have a label of their own.
    """

    def __init__(self, latest: Callable[[], EngineTelemetry | None], most_tenants: int) -> None:
        self._latest = latest
        self._most_tenants = most_tenants
        self._labels: dict[str, str] = {}

    def describe(self) -> list[Metric]:
        """Nothing: registering must not need an engine."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric of the newest telemetry; none before the first."""
        telemetry = self._latest()
        if telemetry is None:
            return
        # Only an erasure takes counters away: the name must not stay, nor its place among the labels.
        known = {total.tenant for total in telemetry.counters}
        self._labels = {tenant: label for tenant, label in self._labels.items() if tenant in known}
        yield from self._totals(telemetry.counters)
        yield from self._per_position(telemetry.counters)
        yield from self._per_context(telemetry.counters)
        yield self._lookahead(telemetry.counters)
        yield self._calibration(telemetry.calibration_error)
        yield from self._slots(telemetry.slot_usage)
        yield from _engine(telemetry)

    def _label(self, tenant: str) -> str:
        """The tenant's label, fixed at its first appearance."""
        label = self._labels.get(tenant)
        if label is None:
            own = sum(known != OTHER for known in self._labels.values())
            label = self._labels[tenant] = tenant if own < self._most_tenants else OTHER
        return label

    def _totals(self, counters: list[ArmCounters]) -> Iterator[Metric]:
        for field, text in _TOTALS.items():
            sums: defaultdict[tuple[str, str], float] = defaultdict(float)
            for total in counters:
                sums[self._label(total.tenant), total.arm.value] += getattr(total, field)
            metric = CounterMetricFamily(_NAMES[field], text, labels=["tenant", "arm"])
            for labels, value in sums.items():
                metric.add_metric(labels, value)
            yield metric

    def _by_index(
        self, counters: list[ArmCounters], field: str, name: str, text: str, label: str, names: list[str]
    ) -> Metric:
        sums: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        for total in counters:
            for index, value in enumerate(getattr(total, field)):
                sums[self._label(total.tenant), total.arm.value, names[index]] += value
        metric = CounterMetricFamily(name, text, labels=["tenant", "arm", label])
        for labels, value in sums.items():
            metric.add_metric(labels, value)
        return metric

    def _per_position(self, counters: list[ArmCounters]) -> Iterator[Metric]:
        longest = max((len(total.accepted_per_position) for total in counters), default=0)
        yield self._by_index(
            counters,
            "accepted_per_position",
            "adaptive_spec_decode_num_accepted_tokens_per_pos",
            "Verify steps whose draft at this position (from 0) was accepted.",
            "position",
            [str(position) for position in range(longest)],
        )

    def _per_context(self, counters: list[ArmCounters]) -> Iterator[Metric]:
        for field, name, text in (
            ("verify_steps_by_context", "num_drafts_by_context", "Verify steps by context length."),
            ("accepted_by_context", "num_accepted_tokens_by_context", "Accepted drafts by context length."),
        ):
            yield self._by_index(
                counters, field, f"adaptive_spec_decode_{name}", text, "context", list(CONTEXT_LABELS)
            )

    def _lookahead(self, counters: list[ArmCounters]) -> Metric:
        longest = max((len(total.lookahead_chosen) for total in counters), default=0)
        return self._by_index(
            counters,
            "lookahead_chosen",
            "adaptive_spec_decode_lookahead",
            "Steps by the number of drafts they verified.",
            "lookahead",
            [str(lookahead) for lookahead in range(longest)],
        )

    def _calibration(self, errors: dict[str, float]) -> Metric:
        metric = GaugeMetricFamily(
            "adaptive_spec_decode_calibration_error",
            "Expected calibration error of the acceptance probabilities that decisions used.",
            labels=["tenant"],
        )
        for tenant, error in errors.items():
            label = self._label(tenant)
            if label != OTHER:  # errors do not add up
                metric.add_metric([label], error)
        return metric

    def _slots(self, usage: list[SlotUsage]) -> Iterator[Metric]:
        for field, text in (
            ("hits", "Requests that found their tenant's adapter resident."),
            ("misses", "Requests that turbo served because it was not."),
            ("evictions", "Times another tenant took the adapter's slot."),
            ("loads", "Times an adapter was written into a slot."),
        ):
            sums: defaultdict[str, int] = defaultdict(int)
            for tenant in usage:
                sums[self._label(tenant.tenant)] += getattr(tenant, field)
            metric = CounterMetricFamily(f"adaptive_slot_{field}", text, labels=["tenant"])
            for label, value in sums.items():
                metric.add_metric([label], value)
            yield metric


def _engine(telemetry: EngineTelemetry) -> Iterator[Metric]:
    """What an engine has once."""
    pauses = telemetry.swap_pause_ms
    pause = GaugeMetricFamily(
        "adaptive_swap_pause_seconds",
        "Pause of the engine for an adapter swap, over the last 1,000.",
        labels=["statistic"],
    )
    if pauses:
        pause.add_metric(["median"], statistics.median(pauses) / 1000)
        pause.add_metric(["max"], max(pauses) / 1000)
    yield pause
    for name, text, value in (
        ("traces_published", "Trace records the log accepted.", telemetry.traces_published),
        ("traces_dropped", "Trace records lost.", telemetry.traces_dropped),
        ("trace_dropped_bytes", "Bytes of the trace records lost.", telemetry.dropped_bytes),
        ("trace_feature_bytes", "Bytes of features written to the store.", telemetry.feature_bytes),
        ("trace_features_lost", "Traces that lost their features.", telemetry.features_lost),
        ("engine_steps", "Engine steps with a request that may speculate.", telemetry.steps),
        (
            "load_floor_steps",
            "Such steps that the load floor ran without speculation.",
            telemetry.floor_steps,
        ),
    ):
        yield CounterMetricFamily(f"adaptive_{name}", text, value)
    gauges: tuple[tuple[str, str, float], ...] = (
        ("trace_queue_depth", "Trace records waiting for the log.", telemetry.queue_depth),
        ("trace_queue_bytes", "Bytes of those, features included.", telemetry.queue_bytes),
        ("trace_rate", "Share of the requests to record which are recorded.", telemetry.trace_rate),
        ("trace_feature_rate", "Share of those to keep features of.", telemetry.feature_rate),
        ("slots_occupied", "Slots that hold an adapter.", len(telemetry.slots)),
    )
    for name, text, gauge in gauges:
        yield GaugeMetricFamily(f"adaptive_{name}", text, gauge)
