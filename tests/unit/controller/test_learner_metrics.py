"""Lag of the learners as Prometheus sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.learner_metrics import LearnerCollector
from learners.status import IntakeStatus, LearnerStatus, TenantStatus, write_status

if TYPE_CHECKING:
    from pathlib import Path


def rendered(path: Path, now: float) -> str:
    """The metrics in text."""
    registry = CollectorRegistry()
    registry.register(LearnerCollector(path, lambda: now))
    return generate_latest(registry).decode()


def test_lag_is_reported_per_partition(tmp_path: Path) -> None:
    """What the learner wrote, in records and seconds."""
    path = tmp_path / "status.json"
    status = LearnerStatus("running", 100.0, intake=IntakeStatus(lag={0: 7, 3: 0}, behind_seconds=2.5))
    write_status(path, status)
    text = rendered(path, 110.0)
    assert 'adaptive_learner_lag_records{partition="0"} 7.0' in text
    assert 'adaptive_learner_lag_records{partition="3"} 0.0' in text
    assert "adaptive_learner_behind_seconds 2.5" in text


def test_what_learning_costs_is_summed_over_tenants(tmp_path: Path) -> None:
    """Seconds, updates and drifts of all tenants, and how many wait, without a label per tenant."""
    path = tmp_path / "status.json"
    tenants = {
        "acme": TenantStatus(training_seconds=40.0, updates=3, drifts=1),
        "other": TenantStatus(training_seconds=2.5, updates=1, waiting_for="it does not pay"),
    }
    write_status(path, LearnerStatus("running", 100.0, tenants=tenants))
    text = rendered(path, 110.0)
    assert "adaptive_learner_training_seconds_total 42.5" in text
    assert "adaptive_learner_updates_total 4.0" in text
    assert "adaptive_learner_drifts_total 1.0" in text
    assert "adaptive_learner_tenants_waiting 1.0" in text


@pytest.mark.parametrize("content", [None, b"{", b'{"updated_at": 1, "intake": {"lag": {"0": 7}}}'])
def test_nothing_is_made_up(tmp_path: Path, content: bytes | None) -> None:
    """No file, half a file and a stale one give no samples."""
    path = tmp_path / "status.json"
    if content is not None:
        path.write_bytes(content)
    assert "\nadaptive_learner" not in rendered(path, 1000.0)
