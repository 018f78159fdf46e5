"""Waiting times between attempts at something that is away."""

from __future__ import annotations

import time

import msgspec


class Backoff(msgspec.Struct):
    """Doubles the wait after every failure in a row: a short outage costs little, a long one makes no load.

    Unlike stamina's, the waiting is left to the caller, who must be able to end it when it shuts down.
    """

    first_seconds: float = 0.05
    most_seconds: float = 2.0
    failures: int = 0
    """In a row."""
    retry_at: float = 0.0
    """time.monotonic() of the next attempt."""

    @property
    def waiting_seconds(self) -> float:
        """Time left until the next attempt is due."""
        return max(0.0, self.retry_at - time.monotonic())

    def failed(self) -> None:
        """Note a failure."""
        wait = min(self.most_seconds, self.first_seconds * 2 ** min(self.failures, 30))
        self.failures += 1
        self.retry_at = time.monotonic() + wait

    def succeeded(self) -> bool:
        """Note a success; True if it ends an outage."""
        recovered = self.failures > 0
        self.failures, self.retry_at = 0, 0.0
        return recovered
