"""Quotas, on a clock that the test moves."""

from __future__ import annotations

import msgspec
import pytest

from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.limits import Limiter
from tests.unit.endpoint.records import account


class Clock:
    """Seconds that pass when told to."""

    now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """It stands still."""
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> Limiter:
    """Nothing used yet."""
    return Limiter(clock)


def refusal(limiter: Limiter, **quotas: int) -> tuple[str, int] | None:
    """Admit a request of acme: (kind, seconds to wait) if it is refused."""
    refused: EndpointError | None = None
    try:
        limiter.admit(msgspec.structs.replace(account("acme"), **quotas))
    except EndpointError as error:
        refused = error
    if refused is None:
        return None
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert refused.retry_after is not None
    return refused.kind, refused.retry_after


def test_without_quotas_everything_is_admitted(limiter: Limiter) -> None:
    """None is no limit."""
    assert [refusal(limiter) for _ in range(1000)] == [None] * 1000


def test_requests_per_minute_come_back_over_the_minute(limiter: Limiter, clock: Clock) -> None:
    """A burst of the whole quota, then one for every 60 / limit seconds, as Retry-After says."""
    for _ in range(6):
        assert refusal(limiter, requests_per_minute=6) is None
    assert refusal(limiter, requests_per_minute=6) == ("requests", 10)
    clock.now += 9.9
    assert refusal(limiter, requests_per_minute=6) == ("requests", 1)
    clock.now += 0.1
    assert refusal(limiter, requests_per_minute=6) is None
    assert refusal(limiter, requests_per_minute=6) == ("requests", 10)
    clock.now += 600
    assert [refusal(limiter, requests_per_minute=6) for _ in range(7)].count(None) == 6


def test_tokens_go_into_debt_that_is_paid_back(limiter: Limiter, clock: Clock) -> None:
    """Used tokens are known at the end only; who overdrew waits for as long as it takes."""
    assert refusal(limiter, tokens_per_minute=60) is None
    assert refusal(limiter, tokens_per_minute=60) is None
    limiter.settle("acme", 100)
    limiter.settle("acme", 20)
    assert refusal(limiter, tokens_per_minute=60) == ("tokens", 61)
    clock.now += 61
    assert refusal(limiter, tokens_per_minute=60) is None


def test_a_refused_request_uses_nothing(limiter: Limiter, clock: Clock) -> None:
    """Asking again does not push the moment away."""
    assert refusal(limiter, requests_per_minute=1) is None
    waits = [refusal(limiter, requests_per_minute=1) for _ in range(5)]
    assert waits == [("requests", 60)] * 5
    clock.now += 60
    assert refusal(limiter, requests_per_minute=1) is None


def test_requests_in_flight_are_bounded(limiter: Limiter) -> None:
    """One has to end before another is admitted."""
    assert refusal(limiter, concurrent_requests=2) is None
    assert refusal(limiter, concurrent_requests=2) is None
    assert refusal(limiter, concurrent_requests=2) == ("requests", 1)
    assert limiter.in_flight() == {"acme": 2}
    limiter.settle("acme", 0)
    assert refusal(limiter, concurrent_requests=2) is None
    limiter.settle("acme", 0)
    limiter.settle("acme", 0)
    assert limiter.in_flight() == {}


@pytest.mark.parametrize("quota", ["requests_per_minute", "tokens_per_minute", "concurrent_requests"])
def test_zero_admits_nothing(limiter: Limiter, clock: Clock, quota: str) -> None:
    """An operator may close a tenant's traffic without suspending it."""
    for _ in range(2):
        refused = refusal(limiter, **{quota: 0})
        assert refused is not None
        assert refused[1] >= 1
        clock.now += 1000


def test_a_changed_quota_counts_at_once(limiter: Limiter, clock: Clock) -> None:
    """A lower one cuts what is left, a higher one refills faster, none forgets."""
    assert refusal(limiter, requests_per_minute=100) is None
    assert refusal(limiter, requests_per_minute=1) is None
    assert refusal(limiter, requests_per_minute=1) == ("requests", 60)
    clock.now += 1
    assert refusal(limiter, requests_per_minute=120) is None
    assert refusal(limiter) is None
