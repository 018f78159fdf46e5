"""Quotas of a tenant: requests and tokens per minute, requests in flight.

Per-minute quotas are token buckets that hold one minute's worth. A request's tokens are known only at its
end, so it is admitted while the bucket is not empty and its tokens are taken out afterwards, into debt if
need be: a tenant that overdrew waits until the debt has been paid.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING, Final

from adaptive.endpoint.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptive.contracts import TenantChanged

_MINUTE: Final = 60.0


@dataclasses.dataclass(slots=True)
class _Bucket:
    level: float
    at: float

    def refill(self, limit: int, now: float) -> None:
        self.level = min(float(limit), self.level + limit * (now - self.at) / _MINUTE)
        self.at = now

    def seconds_until(self, level: float, limit: int) -> float:
        return _MINUTE if limit == 0 else (level - self.level) * _MINUTE / limit


@dataclasses.dataclass(slots=True)
class _Usage:
    requests: _Bucket | None = None
    tokens: _Bucket | None = None
    in_flight: int = 0


class Limiter:
    """Usage per tenant; `admit` and `settle` are for the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._usage: dict[str, _Usage] = {}

    def admit(self, account: TenantChanged) -> None:
        """Count a request in; `settle` must follow when it ends.

        Raises:
            EndpointError: 429 with the seconds to wait.
        """
        usage = self._usage.setdefault(account.tenant, _Usage())
        now = self._clock()
        requests = _bucket(usage.requests, account.requests_per_minute, now)
        tokens = _bucket(usage.tokens, account.tokens_per_minute, now)
        usage.requests, usage.tokens = requests, tokens
        most = account.concurrent_requests
        if most is not None and usage.in_flight >= most:
            raise _refused("requests", f"{most} concurrent requests", 1.0)
        if requests is not None and requests.level < 1:
            limit = account.requests_per_minute or 0
            raise _refused("requests", f"{limit} requests per minute", requests.seconds_until(1, limit))
        if tokens is not None and tokens.level <= 0:
            limit = account.tokens_per_minute or 0
            raise _refused("tokens", f"{limit} tokens per minute", tokens.seconds_until(1, limit))
        if requests is not None:
            requests.level -= 1
        usage.in_flight += 1

    def settle(self, tenant: str, tokens: int) -> None:
        """Count a request out with the prompt and completion tokens that it used."""
        usage = self._usage[tenant]
        usage.in_flight -= 1
        if usage.tokens is not None:
            usage.tokens.level -= tokens

    def in_flight(self) -> dict[str, int]:
        """Requests in flight per tenant that has any; safe from other threads."""
        return {tenant: usage.in_flight for tenant, usage in list(self._usage.items()) if usage.in_flight}


def _bucket(bucket: _Bucket | None, limit: int | None, now: float) -> _Bucket | None:
    if limit is None:
        return None
    if bucket is None:
        return _Bucket(float(limit), now)
    bucket.refill(limit, now)
    return bucket


def _refused(kind: str, quota: str, seconds: float) -> EndpointError:
    wait = max(1, math.ceil(seconds))
    return EndpointError(
        429,
        f"this tenant's quota of {quota} is used up: try again in {wait} s, or ask the operator for more",
        code="rate_limit_exceeded",
        kind=kind,
        retry_after=wait,
    )
