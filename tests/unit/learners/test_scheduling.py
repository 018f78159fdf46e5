"""Who is due: new text, drift, quota and what pays, read from the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adaptive.contracts import Arm, ArmCounters, EngineTelemetry, SamplingSummary, TraceRecord, VerifyStep
from adaptive.settings import Settings
from learners.ledger import Ledger
from learners.payoff import Outcome
from learners.records import TenantCounters
from learners.scheduling import Scheduler
from learners.step_costs import step_costs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger."""
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def scheduler(ledger: Ledger, home: Path, quota: float | None = None) -> Scheduler:
    """A scheduler at second 1,000 on verify steps of 40 ms."""
    settings = Settings(home=home, training_seconds_per_day=quota)
    return Scheduler(settings, ledger, lambda _: 0.04, lambda: 1000.0)


def traffic(ledger: Ledger, tenant: str, requests: int, seconds: float) -> None:
    """Requests of 20 verify steps that accept two of four drafts, spread over a time."""
    steps = [VerifyStep(Arm.TURBO, 0, 3 * n, [1, 2, 3, 4], 2, [0.0] * 4) for n in range(20)]
    for number in range(requests):
        record = TraceRecord(
            f"{tenant}-{number}:0", tenant, f"{tenant}-{number}", 0, seconds * number / requests,
            "t", "u", "", [1], 1, 0, [1] * 60, steps, SamplingSummary(), finished=True,
        )  # fmt: skip
        ledger.enter(record, 0, number)


def counters(tenant: str, tokens: int) -> TenantCounters:
    """A tenant with new text."""
    return TenantCounters(tenant, tokens=tokens)


def test_new_text_of_a_busy_tenant_is_due(ledger: Ledger, tmp_path: Path) -> None:
    """Enough new tokens and traffic that pays; below the trigger nothing is asked."""
    traffic(ledger, "acme", 50, seconds=60)
    plan = scheduler(ledger, tmp_path)
    plan.refresh()
    assert plan.due([counters("acme", 2000)]) == ["acme"]
    assert plan.due([counters("acme", 1999)]) == []


def test_a_tenant_that_sends_little_waits_and_says_why(ledger: Ledger, tmp_path: Path) -> None:
    """Fifty requests in a month save less than training costs; the status can say so."""
    traffic(ledger, "acme", 50, seconds=30 * 86400)
    plan = scheduler(ledger, tmp_path)
    plan.refresh()
    decision = plan.decide(counters("acme", 3000))
    assert not decision.due
    assert "does not pay" in decision.why


def test_a_quota_holds_whatever_it_would_save(ledger: Ledger, tmp_path: Path) -> None:
    """A tenant whose seconds of the day are used up waits; another does not."""
    for tenant in ("acme", "other"):
        traffic(ledger, tenant, 50, seconds=10)
    plan = scheduler(ledger, tmp_path, quota=30.0)
    plan.refresh()
    plan._outcomes["acme"] = [Outcome(900.0, published=True, gain=0.5, seconds=31.0)]
    assert plan.due([counters("acme", 5000), counters("other", 5000)]) == ["other"]
    assert "quota" in plan.decide(counters("acme", 5000)).why
    plan._outcomes["acme"] = [Outcome(900.0 - 86400, published=True, gain=0.5, seconds=31.0)]
    assert len(plan.due([counters("acme", 5000), counters("other", 5000)])) == 2


def test_drift_brings_an_update_forward(ledger: Ledger, tmp_path: Path) -> None:
    """After a drift a quarter of the new text is enough, and the tenant goes first."""
    for tenant in ("acme", "other"):
        traffic(ledger, tenant, 50, seconds=600)
    plan = scheduler(ledger, tmp_path)
    plan.refresh()
    assert plan.due([counters("acme", 500), counters("other", 2000)]) == ["other"]
    plan._traffic["acme"].drifted_at = 500.0
    assert plan.due([counters("other", 2000), counters("acme", 500)])[0] == "acme"


def test_a_restart_knows_what_was_observed(ledger: Ledger, tmp_path: Path) -> None:
    """Observations come from the ledger; of each tenant the newest are kept, an erased one's are gone."""
    traffic(ledger, "acme", 50, seconds=60)
    traffic(ledger, "other", 5, seconds=60)
    ledger.trim_observations("acme", 20)
    first = scheduler(ledger, tmp_path)
    first.refresh()
    assert len(first._traffic["acme"]._rows) == 20
    assert [row.number for row in first._traffic["acme"]._rows][-1] == 50
    assert len(first._traffic["other"]._rows) == 5
    ledger.forget("acme")
    second = scheduler(ledger, tmp_path)
    second.refresh()
    assert list(second._traffic) == ["other"]


def test_step_costs_come_from_every_engine() -> None:
    """Engine seconds over verify steps of the drafting arms, of all engines together."""
    reports = [
        EngineTelemetry(
            engine, 0.0, 1.0, "t", "u",
            [
                ArmCounters("acme", Arm.TURBO, 0, verify_steps=100, engine_seconds=seconds),
                ArmCounters("acme", Arm.OFF, 0, verify_steps=50, engine_seconds=99.0),
                ArmCounters("quiet", Arm.TURBO, 0),
            ],
            [], {}, {}, [],
        )
        for engine, seconds in (("a", 3.0), ("b", 5.0))
    ]  # fmt: skip
    assert step_costs(reports) == {"acme": pytest.approx(0.04)}
