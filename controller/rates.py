"""How many requests each caller may make: token buckets in memory, a bounded number of them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.identity import Principal

MOST_BUCKETS: Final = 10_000
WRONG_KEYS_PER_SECOND: Final = 10.0
"""From one address, before it has to wait."""
BURST_SECONDS: Final = 2.0


class RateLimits:
    """Admits requests by the token bucket of their caller.

    Args:
        per_second: Requests of the admin, or of one key, in the long run; twice that at once.
        clock: Seconds that never go back.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, principal: Principal | None, address: str) -> float | None:
        """Take one request.

        Args:
            principal: Who calls; None: whoever sent a wrong key from `address`.
            address: Where the request came from.

        Returns:
            Seconds until the next is admitted; None: this one is.
        """
        if principal is None:
            return self._take(f"address {address}", WRONG_KEYS_PER_SECOND)
        return self._take(principal.name, self._per_second)

    def _take(self, name: str, rate: float) -> float | None:
        now = self._clock()
        most = max(rate * BURST_SECONDS, 1.0)
        with self._lock:
            left, at = self._buckets.pop(name, (most, now))
            left = min(most, left + (now - at) * rate)
            admitted = left >= 1
            self._buckets[name] = (left - 1 if admitted else left, now)
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        return None if admitted else (1 - left) / rate
