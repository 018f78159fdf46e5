"""The budget takes features first, then traces, and gives them back in the other order."""

from __future__ import annotations

import random

import pytest

from collectors.sampling import LEAST_RATE, ROUND_SECONDS, Sampler


class Engine:
    """Requests at a steady rate against a sampler, in simulated time."""

    def __init__(self, budget: float) -> None:
        self.now = 0.0
        draw = random.Random(0)  # noqa: S311  # reproducible on purpose
        self.sampler = Sampler(budget, clock=lambda: self.now, draw=draw.random)
        self.spent = 0.0

    def run(
        self, seconds: float, requests: int, trace: int, features: int, fill: float = 0.0, lost: int = 0
    ) -> None:
        """`requests` per second, each of `trace` bytes and `features` bytes more where these are kept."""
        for _ in range(int(seconds * requests)):
            self.now += 1 / requests
            if self.sampler.take_request():
                size = features if self.sampler.take_features() else 0
                self.spent += trace + (size if self.sampler.spend(trace, size) else 0)
            self.sampler.adapt(fill, lost)


def test_everything_is_taken_within_the_budget() -> None:
    """A sampler that is never short decides nothing."""
    engine = Engine(1_000_000)
    engine.run(60, 100, 100, 5_000)
    statistics = engine.sampler.statistics()
    assert (statistics.trace_rate, statistics.feature_rate) == (1.0, 1.0)
    assert (statistics.requests_unsampled, statistics.features_unsampled, statistics.features_cut) == (
        0,
        0,
        0,
    )


def test_features_give_way_before_traces() -> None:
    """At ten times the budget the features are sampled so that the budget holds, and no trace is missed."""
    engine = Engine(100_000)
    engine.run(60, 100, 100, 10_000)
    settled = engine.spent
    engine.run(120, 100, 100, 10_000)
    assert 0.4 * 120 * 100_000 < engine.spent - settled <= 1.05 * 120 * 100_000
    statistics = engine.sampler.statistics()
    assert statistics.feature_rate < 0.3
    assert (statistics.trace_rate, statistics.requests_unsampled) == (1.0, 0)
    assert statistics.features_unsampled > 0


def test_traces_give_way_where_features_are_not_enough() -> None:
    """Traces alone above the budget are sampled too, and both rates rise again when there is room."""
    engine = Engine(10_000)
    engine.run(120, 100, 1_000, 10_000)
    settled = engine.spent
    engine.run(60, 100, 1_000, 10_000)
    assert engine.spent - settled < 1.3 * 60 * 10_000
    statistics = engine.sampler.statistics()
    assert statistics.trace_rate < 0.5
    assert statistics.requests_unsampled > 0
    engine.run(60, 1, 10, 10)
    statistics = engine.sampler.statistics()
    assert (statistics.trace_rate, statistics.feature_rate) == (1.0, 1.0)


@pytest.mark.parametrize(("fill", "lost"), [(0.9, 0), (0.0, 1)], ids=["full", "drops"])
def test_a_queue_that_fills_lowers_the_rates(fill: float, lost: int) -> None:
    """A log that is away or slow is no reason to go on recording what will be dropped."""
    engine = Engine(1e9)
    engine.run(2 * ROUND_SECONDS, 10, 1, 1, fill=fill, lost=lost)
    assert engine.sampler.statistics().feature_rate < 1.0


def test_rates_never_reach_zero() -> None:
    """After hours of outage there is still something that shows when it is over."""
    engine = Engine(1e9)
    engine.run(600, 10, 1, 1, fill=1.0)
    statistics = engine.sampler.statistics()
    assert (statistics.trace_rate, statistics.feature_rate) == (LEAST_RATE, LEAST_RATE)


def test_the_bucket_cuts_features_that_it_cannot_pay() -> None:
    """A burst beyond four seconds' budget keeps its traces and loses features at once, not a round later."""
    engine = Engine(1_000)
    kept = [engine.sampler.spend(10, 990) for _ in range(10)]
    assert kept == [True] * 4 + [False] * 6
    assert engine.sampler.statistics().features_cut == 6
    engine.now += 4
    assert engine.sampler.spend(10, 990)


def test_debt_is_bounded() -> None:
    """Traces may overrun the budget for hours; features come back within seconds, not hours."""
    engine = Engine(1_000)
    for _ in range(10_000):
        engine.sampler.spend(1_000, 0)
    engine.now += 8
    assert engine.sampler.spend(0, 3_900)
