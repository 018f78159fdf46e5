"""The ledger makes at-least-once delivery effectively once, and survives whatever dies."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import msgspec
import pytest

from adaptive.contracts import SamplingSummary, TraceRecord, encode
from learners.ledger import Entry, Ledger
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


def test_traces_are_forgotten_when_the_log_can_no_longer_deliver_them(tmp_path: Path) -> None:
    """By the time they were taken in; the requests of then go with them unless they are in the replay."""
    now = [100.0]
    ledger = Ledger(tmp_path / "aging.db", clock=lambda: now[0])
    kept, evicted = make_ready(ledger, "r1", "d1"), make_ready(ledger, "r2", "d2")
    ledger.evict([evicted])
    now[0] = 200.0
    make_ready(ledger, "r3", "d3")
    assert ledger.prune(150.0) == 2
    assert not ledger.enter(record("r3"), 0, 5)
    assert ledger.enter(record("r2"), 0, 5)
    assert kept in [one.number for one in ledger.ready("acme")]
    assert len(ledger.complete_requests()) == 1
    ledger.close()


def test_a_ledger_of_an_earlier_release_is_taken_over(tmp_path: Path) -> None:
    """Its traces count as taken in now, so that none is forgotten too early."""
    path = tmp_path / "old.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute(
            "CREATE TABLE trace (trace_id TEXT PRIMARY KEY, tenant TEXT NOT NULL, log_partition INTEGER NOT"
            " NULL, log_offset INTEGER NOT NULL) WITHOUT ROWID"
        )
        old.execute("INSERT INTO trace VALUES (?, 'acme', 0, 5)", (record().trace_id,))
        old.commit()
    ledger = Ledger(path, clock=lambda: 100.0)
    assert ledger.prune(99.0) == 0
    assert not ledger.enter(record(), 0, 5)
    assert ledger.prune(101.0) == 1
    ledger.close()


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


def entry(
    request: str, segment: int = 0, *, tenant: str = "acme", finished: bool = True, why: str = ""
) -> Entry:
    """A trace as intake hands it over."""
    made = record(request, segment, finished=finished, tenant=tenant)
    return Entry(made, encode(made), 0, 7, why)


def test_a_batch_says_what_became_of_it(ledger: Ledger) -> None:
    """Duplicates within a batch and across batches are one trace; a request is complete once, when it is."""
    batch = [entry("r1"), entry("r1"), entry("r2", 1), entry("r3", why="no_consent")]
    first = ledger.enter_many(batch)
    assert (first.duplicates, first.excess) == (1, 0)
    assert [tenant for tenant, _ in first.complete] == ["acme"]
    second = ledger.enter_many([*batch, entry("r2", 0, finished=False)])
    assert (second.duplicates, len(second.complete)) == (4, 1)
    assert ledger.waiting_requests() == [*first.complete, *second.complete]
    assert ledger.tenants()["acme"].left_out == {"no_consent": 1}


def test_a_batch_is_all_or_nothing(ledger: Ledger) -> None:
    """A failure in the middle leaves nothing, so that delivering the batch again enters all of it."""
    broken = entry("r2")._replace(value=object())  # type: ignore[arg-type]  # what SQLite refuses
    with pytest.raises(sqlite3.Error):
        ledger.enter_many([entry("r1"), broken])
    assert ledger.waiting_requests() == []
    assert ledger.enter_many([entry("r1"), entry("r2")]).duplicates == 0


def test_more_than_may_wait_is_left_out_and_counted(ledger: Ledger) -> None:
    """A tenant's excess is left out at the door, with all of its segments; others have room of their own."""
    batch = [entry(f"r{number}") for number in range(5)] + [entry("long", 1), entry("c", tenant="cold")]
    entered = ledger.enter_many(batch, {"acme": 1}, 3)
    assert (entered.excess, len(entered.complete)) == (4, 3)
    assert ledger.tenants()["acme"].left_out == {"excess": 4}
    later = ledger.enter_many([entry("long", 0, finished=False)])
    assert (later.complete, later.excess, later.duplicates) == ([], 0, 0)
    assert {tenant for tenant, _ in ledger.waiting_requests()} == {"acme", "cold"}
    assert ledger.enter_many(batch, {}, 3).duplicates == 7


def test_a_request_under_way_is_not_cut_off_by_excess(ledger: Ledger) -> None:
    """Room is asked for when a request begins; its later segments come in whatever waits then."""
    ledger.enter_many([entry("r1", 0, finished=False)])
    entered = ledger.enter_many([entry("r1", 1)], {"acme": 100}, 3)
    assert (entered.excess, len(entered.complete)) == (0, 1)
