"""The report a run leaves behind: runs/demo/report.json."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adaptive.demo.probe import ArmResult


def tenant_report(arms: Mapping[Arm, ArmResult], versions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One tenant's part.

    Args:
        arms: probe results.
        versions: the controller's list of published versions, oldest first.
    """
    return {
        "turbo": arms[Arm.TURBO].summary(),
        # Version 0: no adapter was proven better, so turbo served the adapted requests too.
        "adapted": {**arms[Arm.ADAPTER].summary(), "versions": sorted(arms[Arm.ADAPTER].versions)},
        "no_speculation": {"tokens_per_second": arms[Arm.OFF].tokens_per_second},
        "tokens_trained": max((version["tokens_trained"] for version in versions), default=0),
        "training_seconds": sum(version["training_seconds"] for version in versions),
        "versions": [
            {
                "version": version["version"],
                "status": version["status"],
                "holdout_tau": version["holdout_tau"],
                "gain_lower": version["gain_lower"],
                "tokens_trained": version["tokens_trained"],
                "training_seconds": version["training_seconds"],
            }
            for version in versions
        ],
    }


def pauses_report(pauses_ms: Sequence[float]) -> dict[str, float | None]:
    """Median and maximum of the swap pauses; nulls where nothing was swapped."""
    if not pauses_ms:
        return {"p50": None, "max": None}
    return {"p50": statistics.median(pauses_ms), "max": max(pauses_ms)}


def write(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
