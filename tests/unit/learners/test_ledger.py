"""The ledger makes at-least-once delivery effectively once, and survives whatever dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from adaptive.contracts import SamplingSummary, TraceRecord
from learners.ledger import Ledger
from learners.records import UpdatePlan, UpdateState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger."""
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def record(
    request: str = "r1", segment: int = 0, *, finished: bool = True, tenant: str = "acme"
) -> TraceRecord:
    """A trace without features."""
    return TraceRecord(
        trace_id=f"{request}:{segment}",
        tenant=tenant,
        request_id=request,
        segment=segment,
        created_at=10.0,
        target_sha256="t",
        turbo_sha256="u",
        tokenizer_sha256="k",
        prompt_ids=[1, 2] if segment == 0 else [],
        prompt_length=2,
        output_start=0,
        output_ids=[3, 4],
        steps=[],
        sampling=SamplingSummary(),
        finished=finished,
    )


def plan(tenant: str = "acme", training: tuple[int, ...] = ()) -> UpdatePlan:
    """A plan of nothing in particular."""
    return UpdatePlan(
        tenant=tenant,
        ordinal=1,
        version=1,
        seed=0,
        training=training,
        fresh=training,
        holdout=(),
        warm_start=None,
        tokens=0,
        token_steps=0,
        batch_tokens=1,
        learning_rate=0.1,
        rank=1,
        unroll_depth=1,
        precision="float32",
        target_sha256="t",
        turbo_sha256="u",
        traces_until=0.0,
        first_offset={0: 1},
        last_offset={0: 2},
    )


def make_ready(ledger: Ledger, request: str, digest: str, tenant: str = "acme") -> int:
    """Enter a request and mark it stored; returns its number."""
    ledger.enter(record(request, tenant=tenant), 0, 1)
    (number,) = ledger.complete_requests()
    ledger.mark_ready(number, rows=4, tokens=2, digest=digest, source="t:1")
    return number


def test_a_trace_delivered_again_changes_nothing(ledger: Ledger) -> None:
    """The second delivery of a trace_id is refused, whatever its offset, and leaves one request."""
    assert ledger.enter(record(), 0, 5)
    assert not ledger.enter(record(), 0, 5)
    assert not ledger.enter(record(), 1, 9)
    (number,) = ledger.complete_requests()
    assert len(ledger.parts(number)) == 1


def test_traces_stay_consumed_after_a_restart(ledger: Ledger, tmp_path: Path) -> None:
    """What was entered before a kill is known afterwards, with the same ledger id."""
    ledger.enter(record(), 0, 5)
    again = Ledger(tmp_path / "ledger.db")
    assert not again.enter(record(), 0, 5)
    assert again.ledger_id == ledger.ledger_id
    again.close()


def test_a_redelivered_trace_does_not_reopen_its_request(ledger: Ledger) -> None:
    """A late duplicate segment of a request that is stored already is kept nowhere."""
    make_ready(ledger, "r1", "d1")
    assert ledger.enter(record("r1", 1), 0, 6)
    assert ledger.complete_requests() == []


def test_a_request_is_complete_when_every_segment_is_here_in_any_order(ledger: Ledger) -> None:
    """The last segment alone is not enough; a gap in the middle holds a request open."""
    ledger.enter(record(segment=2), 0, 7)
    ledger.enter(record(segment=0, finished=False), 0, 5)
    assert ledger.complete_requests() == []
    ledger.enter(record(segment=1, finished=False), 0, 6)
    (number,) = ledger.complete_requests()
    assert [part.segment for part in ledger.parts(number)] == [0, 1, 2]


def test_repeated_text_is_counted_and_left_out(ledger: Ledger) -> None:
    """A second request with the same tokens adds nothing to the tenant's replay; another tenant's does."""
    make_ready(ledger, "r1", "same")
    make_ready(ledger, "r2", "same")
    make_ready(ledger, "r3", "same", tenant="other")
    assert [one.request_id for one in ledger.ready("acme")] == ["r1"]
    assert ledger.tenants()["acme"].left_out == {"repeated": 1}
    assert ledger.tenants()["acme"].tokens == 2
    assert [one.request_id for one in ledger.ready("other")] == ["r3"]


def test_evicted_text_still_counts_as_seen(ledger: Ledger) -> None:
    """Text that made room is a repetition when it comes again, since an update may have trained on it."""
    ledger.evict([make_ready(ledger, "r1", "same")])
    make_ready(ledger, "r2", "same")
    assert ledger.ready("acme") == []


def test_features_of_another_target_are_found(ledger: Ledger) -> None:
    """Requests stored under another target or other layers can be told apart."""
    make_ready(ledger, "r1", "d1")
    assert [one.request_id for one in ledger.foreign("t:2")] == ["r1"]
    assert ledger.foreign("t:1") == []


def test_an_update_goes_on_from_the_ledger(ledger: Ledger, tmp_path: Path) -> None:
    """An unfinished update, its plan and what it trains on outlive the process; a finished one is over."""
    number = make_ready(ledger, "r1", "d1")
    update = ledger.begin_update(plan(training=(number,)))
    again = Ledger(tmp_path / "ledger.db")
    assert again.unfinished_update() == update
    assert again.ready("acme")[0].trained
    assert again.tenants()["acme"].tokens_since_update == 0
    again.advance_update(update, UpdateState.PUBLISHED)
    assert again.unfinished_update() is None
    assert [one.update_id for one in again.unrecorded()] == [update.update_id]
    again.close()


def test_stale_requests_are_named(ledger: Ledger) -> None:
    """A request whose end never came can be given up."""
    ledger.enter(record(finished=False), 0, 1)
    assert ledger.stale_requests(before=9.0) == []
    (number,) = ledger.stale_requests(before=11.0)
    ledger.leave_out(number, "incomplete")
    assert ledger.tenants()["acme"].left_out == {"incomplete": 1}


def test_plans_survive_the_trip_through_the_ledger(ledger: Ledger) -> None:
    """A plan read back equals the plan stored, so a resumed update is the same update."""
    ledger.begin_update(plan())
    (update,) = ledger.updates("acme")
    assert update.plan == plan()
    assert msgspec.msgpack.encode(update.plan) == msgspec.msgpack.encode(plan())
