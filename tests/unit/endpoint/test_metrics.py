"""The endpoint's Prometheus metrics."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from adaptive.contracts import Arm, ArmCounters, EngineTelemetry, SlotUsage
from adaptive.endpoint.metrics import OTHER, TelemetryCollector


def telemetry(*counters: ArmCounters, **fields: object) -> EngineTelemetry:
    """A report of an engine with these totals."""
    blank = EngineTelemetry("engine", 0.0, 1.0, "target", "turbo", list(counters), [], {}, {}, [])
    return msgspec.structs.replace(blank, **fields)


def registry_of(report: EngineTelemetry | None, most_tenants: int = 10) -> CollectorRegistry:
    """A registry that renders one report."""
    registry = CollectorRegistry()
    registry.register(TelemetryCollector(lambda: report, most_tenants))
    return registry


def test_nothing_before_the_first_report() -> None:
    """An engine that has not reported yet has no metrics, and the scrape succeeds."""
    assert list(registry_of(None).collect()) == []


def test_versions_of_an_arm_are_summed() -> None:
    """Versions are not labels: a tenant's adapter versions count as one arm."""
    registry = registry_of(
        telemetry(
            ArmCounters("acme", Arm.ADAPTER, 1, verify_steps=10, drafted=40, accepted=20),
            ArmCounters("acme", Arm.ADAPTER, 2, verify_steps=5, drafted=20, accepted=15),
            ArmCounters("acme", Arm.TURBO, 0, verify_steps=7),
        )
    )
    labels = {"tenant": "acme", "arm": "adapter"}
    assert registry.get_sample_value("adaptive_spec_decode_num_drafts_total", labels) == 15
    assert registry.get_sample_value("adaptive_spec_decode_num_accepted_tokens_total", labels) == 35
    labels["arm"] = "turbo"
    assert registry.get_sample_value("adaptive_spec_decode_num_drafts_total", labels) == 7


def test_positions_contexts_and_lookaheads_have_labels_of_their_own() -> None:
    """Acceptance per position, tau by context length and the lookahead chosen can be read off."""
    registry = registry_of(
        telemetry(
            ArmCounters(
                "acme",
                Arm.TURBO,
                0,
                accepted_per_position=[9, 4],
                lookahead_chosen=[3, 0, 8],
                verify_steps_by_context=[6, 0, 0, 2],
                accepted_by_context=[11, 0, 0, 1],
            ),
            calibration_error={"acme": 0.01},
        )
    )
    labels = {"tenant": "acme", "arm": "turbo"}
    for name, extra, value in (
        ("num_accepted_tokens_per_pos_total", {"position": "1"}, 4),
        ("lookahead_total", {"lookahead": "2"}, 8),
        ("num_drafts_by_context_total", {"context": "16k+"}, 2),
        ("num_accepted_tokens_by_context_total", {"context": "0-1k"}, 11),
    ):
        assert registry.get_sample_value(f"adaptive_spec_decode_{name}", labels | extra) == value
    assert registry.get_sample_value(
        "adaptive_spec_decode_calibration_error", {"tenant": "acme"}
    ) == pytest.approx(0.01)


def test_tenants_beyond_the_bound_are_summed_and_no_counter_falls() -> None:
    """Only the first tenants have labels; a label never changes, whatever order later reports come in."""
    reports = [
        telemetry(ArmCounters("a", Arm.TURBO, 0, verify_steps=1)),
        telemetry(
            ArmCounters("c", Arm.TURBO, 0, verify_steps=5),
            ArmCounters("b", Arm.TURBO, 0, verify_steps=3),
            ArmCounters("a", Arm.TURBO, 0, verify_steps=2),
        ),
    ]
    current = reports[0]
    registry = CollectorRegistry()
    registry.register(TelemetryCollector(lambda: current, 1))
    list(registry.collect())
    current = reports[1]

    def drafts(tenant: str) -> float | None:
        return registry.get_sample_value(
            "adaptive_spec_decode_num_drafts_total", {"tenant": tenant, "arm": "turbo"}
        )

    assert (drafts("a"), drafts("b"), drafts("c"), drafts(OTHER)) == (2, None, None, 8)


def test_an_erased_tenant_gives_its_label_up() -> None:
    """Its counters are gone from the reports: no metric names it, and another tenant may have its place."""
    current = telemetry(ArmCounters("a", Arm.TURBO, 0, verify_steps=1))
    registry = CollectorRegistry()
    registry.register(TelemetryCollector(lambda: current, 1))
    list(registry.collect())
    current = telemetry(ArmCounters("b", Arm.TURBO, 0, verify_steps=3))
    labels = {"tenant": "b", "arm": "turbo"}
    assert registry.get_sample_value("adaptive_spec_decode_num_drafts_total", labels) == 3


def test_swap_pauses_are_seconds() -> None:
    """The median and the longest pause are reported in seconds, as Prometheus wants."""
    registry = registry_of(telemetry(swap_pause_ms=[1.0, 2.0, 9.0]))
    assert registry.get_sample_value("adaptive_swap_pause_seconds", {"statistic": "median"}) == 0.002
    assert registry.get_sample_value("adaptive_swap_pause_seconds", {"statistic": "max"}) == 0.009


def test_slots_and_the_trace_path_are_visible() -> None:
    """Hits and misses per tenant, and what the capture budget and the queue do to traces, can be read off."""
    registry = registry_of(
        telemetry(
            slot_usage=[SlotUsage("acme", hits=3, misses=1, evictions=1, loads=2)],
            queue_bytes=7,
            dropped_bytes=5,
            feature_bytes=11,
            trace_rate=0.5,
        )
    )
    for name, labels, value in (
        ("adaptive_slot_hits_total", {"tenant": "acme"}, 3),
        ("adaptive_slot_misses_total", {"tenant": "acme"}, 1),
        ("adaptive_trace_queue_bytes", {}, 7),
        ("adaptive_trace_dropped_bytes_total", {}, 5),
        ("adaptive_trace_feature_bytes_total", {}, 11),
        ("adaptive_trace_rate", {}, 0.5),
    ):
        assert registry.get_sample_value(name, labels) == value
