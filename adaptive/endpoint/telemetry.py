"""What an endpoint reports of its engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from adaptive.contracts import ArmCounters, EngineTelemetry, SlotState, SlotUsage

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Who reports."""

    engine_id: str
    started_at: float
    """Seconds since the epoch."""
    target_sha256: str
    turbo_sha256: str


def telemetry(
    identity: EngineIdentity,
    info: Mapping[str, Any],
    slots: list[SlotState],
    acknowledged: Mapping[str, int],
    refused: Mapping[str, tuple[int, str]],
) -> EngineTelemetry:
    """A report.

    Args:
        identity: Who reports.
        info: What the worker's `adapter_info` returned.
        slots: The slots in it.
        acknowledged: Version of the policy in force, by tenant.
        refused: Version and reason of the policy refused last, by tenant.
    """
    capture = info["capture"]
    features, sampling, cost = (
        capture.get("features", {}),
        capture.get("sampling", {}),
        info.get("cost", {}),
    )
    return EngineTelemetry(
        engine_id=identity.engine_id,
        started_at=identity.started_at,
        reported_at=time.time(),
        target_sha256=identity.target_sha256,
        turbo_sha256=identity.turbo_sha256,
        counters=msgspec.convert(info["counters"], list[ArmCounters]),
        slots=slots,
        acknowledged=dict(acknowledged),
        refused={tenant: why for tenant, (_, why) in refused.items()},
        swap_pause_ms=info["pauses_ms"],
        traces_published=capture.get("published", 0),
        traces_dropped=capture.get("dropped", 0),
        queue_depth=capture.get("queue_depth", 0),
        queue_bytes=capture.get("queue_bytes", 0),
        dropped_bytes=capture.get("dropped_bytes", 0),
        feature_bytes=features.get("bytes", 0),
        features_lost=features.get("lost", 0),
        trace_rate=sampling.get("trace_rate", 1.0),
        feature_rate=sampling.get("feature_rate", 1.0),
        refused_policies={tenant: version for tenant, (version, _) in refused.items()},
        slot_usage=msgspec.convert(info.get("slot_usage", []), list[SlotUsage]),
        calibration_error=info.get("calibration_error", {}),
        steps=info.get("steps", 0),
        floor_steps=info.get("floor_steps", 0),
        target_seconds=cost.get("target", {}),
        draft_pass_seconds=cost.get("next_pass", {}),
    )
