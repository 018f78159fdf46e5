"""Benchmark `capture`: what recording traces and features costs at the default sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from tests.bench.plugin_costs import CONCURRENCY, compare, options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""

    def plans(*, capture: bool) -> list[RequestPlan]:
        plan = RequestPlan(tenant="bench", arm=Arm.ADAPTER, fixed=True, learn=capture, features=capture)
        return [plan] * CONCURRENCY

    return compare(
        "capture",
        {"capture off": lambda _: plans(capture=False), "capture on": lambda _: plans(capture=True)},
        options("capture", __doc__, arguments),
        tenants=["bench"],
        notes="On: every request is recorded with its features, as far as the default budget goes.",
    )
