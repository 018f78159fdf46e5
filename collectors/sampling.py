"""How much of the traffic is recorded: a byte budget that takes features first, then whole traces.

A token bucket holds what the budget allows. Rates follow its level by additive increase and multiplicative
decrease (D.-M. Chiu and R. Jain, Computer Networks and ISDN Systems 17, 1989): every round with a bucket that
runs low, or a queue that fills, halves a rate; every round with enough in it adds a little. A request is
recorded whole or not at all, so the rates act when it begins, and what they decide shows only when it ends;
in the meantime the bucket cuts off the features that it cannot pay for.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

ROUND_SECONDS: Final = 1.0
LEAST_RATE: Final = 0.01
"""A rate never falls below: what is recorded must show when there is room again."""
_BURST_SECONDS: Final = 4.0
_DECREASE: Final = 0.5
_INCREASE: Final = 0.05
_BUCKET_LOW: Final = 0.5
_BUCKET_HIGH: Final = 0.75
_QUEUE_HIGH: Final = 0.5
_QUEUE_LOW: Final = 0.25


class SamplingStatistics(msgspec.Struct, frozen=True):
    """Rates in force, and what they left out since the start."""

    trace_rate: float
    """Share of the requests that may be recorded which are."""
    feature_rate: float
    """Share of the recorded requests chosen for features whose features are kept."""
    requests_unsampled: int
    """Requests that were not recorded because of the rate."""
    features_unsampled: int
    """Recorded requests whose features were not kept because of the rate."""
    features_cut: int
    """Traces that lost their features to the token bucket."""


class Sampler:
    """Decides per request, on the engine's thread; adapts on the publisher's.

    Args:
        bytes_per_second: Budget of traces and features together.
        clock: Monotonic seconds.
        draw: Uniform numbers in [0, 1).
    """

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] | None = None,
    ) -> None:
        self._budget: Final = bytes_per_second
        self._burst: Final = bytes_per_second * _BURST_SECONDS
        self._clock: Final = clock
        # Its own generator: the engine's seeded ones must not feel it.
        self._draw: Final = draw or random.Random().random  # noqa: S311  # which requests to look at is no secret
        self._trace_rate = 1.0
        self._feature_rate = 1.0
        self._tokens = self._burst
        self._filled_at = clock()
        self._requests_unsampled = 0
        self._features_unsampled = 0
        self._features_cut = 0
        self._round_at = clock()
        self._round_dropped = 0

    def take_request(self) -> bool:
        """Whether to record a request that begins now."""
        taken = self._trace_rate >= 1.0 or self._draw() < self._trace_rate
        self._requests_unsampled += not taken
        return taken

    def take_features(self) -> bool:
        """Whether to keep the features of a request that is recorded."""
        taken = self._feature_rate >= 1.0 or self._draw() < self._feature_rate
        self._features_unsampled += not taken
        return taken

    def spend(self, trace_bytes: int, feature_bytes: int) -> bool:
        """Account for a trace; False if its features must stay behind.

        Traces are always let through and may leave the bucket in debt, which features pay for.
        """
        now = self._clock()
        level = self._level(now) - trace_bytes
        paid = feature_bytes <= level or feature_bytes == 0
        if paid:
            level -= feature_bytes
        else:
            self._features_cut += 1
        # Bounded, so that hours of overload are not paid off for hours.
        self._tokens = max(level, -self._burst)
        self._filled_at = now
        return paid

    def adapt(self, queue_fill: float, dropped: int) -> None:
        """Set the rates anew if a round is over.

        Args:
            queue_fill: Share of the queue's bytes in use.
            dropped: Records lost since the start.
        """
        now = self._clock()
        if now - self._round_at < ROUND_SECONDS:
            return
        lost = dropped - self._round_dropped
        self._round_at, self._round_dropped = now, dropped
        level = self._level(now) / self._burst
        if level < _BUCKET_LOW or queue_fill > _QUEUE_HIGH or lost > 0:
            self._decrease()
        elif level > _BUCKET_HIGH and queue_fill < _QUEUE_LOW:
            self._increase()

    def statistics(self) -> SamplingStatistics:
        """Rates and counters."""
        return SamplingStatistics(
            self._trace_rate,
            self._feature_rate,
            self._requests_unsampled,
            self._features_unsampled,
            self._features_cut,
        )

    def _level(self, now: float) -> float:
        return min(self._burst, self._tokens + (now - self._filled_at) * self._budget)

    def _decrease(self) -> None:
        if self._feature_rate > LEAST_RATE:
            self._feature_rate = max(LEAST_RATE, self._feature_rate * _DECREASE)
        else:
            self._trace_rate = max(LEAST_RATE, self._trace_rate * _DECREASE)

    def _increase(self) -> None:
        if self._trace_rate < 1.0:
            self._trace_rate = min(1.0, self._trace_rate + _INCREASE)
        else:
            self._feature_rate = min(1.0, self._feature_rate + _INCREASE)
