"""The benchmark `soak` in short: mixed traffic, swaps every second, more tenants than slots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.bench.soak import Soak, references

if TYPE_CHECKING:
    from tests.bench.soak_service import SoakService

REQUESTS = 60
PROMPTS = 6


def test_mixed_traffic_gets_right_answers_and_leaves_nothing_behind(service: SoakService) -> None:
    """Cancels, disconnects, bad and oversize bodies between good requests, adapters swapped meanwhile.

    Every token is a stock engine's; afterwards no slot, queue or table holds anything.
    """
    report = asyncio.run(Soak(service, references(PROMPTS), seed=3).run(REQUESTS))
    assert report.wrong == []
    assert report.ties <= 1
    assert report.compared > REQUESTS / 2
    assert report.swaps >= 5
    assert report.usage["loads"] >= len(service.tenants) - 1
    assert report.leaks == []
