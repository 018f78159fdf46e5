"""Benchmark `slots`: what it costs that the rows of a batch draft with different tenants' adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from tests.bench.plugin_costs import CONCURRENCY, compare, options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RESIDENT = 32


def plans(adapters: int, batch: int) -> list[RequestPlan]:
    """Plans of a batch whose rows take turns between that many tenants."""
    return [
        RequestPlan(tenant=f"tenant{(batch * CONCURRENCY + row) % adapters}", arm=Arm.ADAPTER, fixed=True)
        for row in range(CONCURRENCY)
    ]


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    return compare(
        "slots",
        {
            "1 adapter": lambda batch: plans(1, batch),
            "8 adapters": lambda batch: plans(8, batch),
            "32 adapters": lambda batch: plans(RESIDENT, batch),
        },
        options("slots", __doc__, arguments),
        tenants=[f"tenant{number}" for number in range(RESIDENT)],
        notes="With 8 and 32 adapters no two rows of a batch share one; with 32 every batch has others.",
    )
