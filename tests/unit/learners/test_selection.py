"""Hold-out, training set and replay are chosen so that nothing is judged by what it was trained on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from learners.gate import MINIMUM_REQUESTS
from learners.records import StoredRequest
from learners.selection import HOLDOUT_MOST, batch_tokens, evictions, expired, split, token_steps, update_seed


def request(number: int, *, rows: int = 100, trained: bool = False) -> StoredRequest:
    """A stored request whose text is unlike any other's."""
    return StoredRequest(
        number=number,
        tenant="acme",
        request_id=f"r{number}",
        rows=rows,
        tokens=rows // 2,
        digest=str(number),
        created_at=float(number),
        partition=0,
        first_offset=number,
        last_offset=number,
        trained=trained,
    )


@given(st.lists(st.integers(0, 120), min_size=1, max_size=8))
def test_no_update_is_judged_by_a_request_that_any_update_trained_on(arrivals: list[int]) -> None:
    """Over a history of updates, a hold-out request has never been in a training set before."""
    stored: list[StoredRequest] = []
    trained: set[int] = set()
    for arrived in arrivals:
        stored += [request(len(stored) + i) for i in range(arrived)]
        stored = [request(one.number, trained=one.number in trained) for one in stored]
        chosen = split(stored)
        holdout = {one.number for one in chosen.holdout}
        training = {one.number for one in chosen.training}
        assert not holdout & training
        assert holdout | training == {one.number for one in stored}
        assert not holdout & trained
        if not chosen.enough:
            continue
        assert MINIMUM_REQUESTS <= len(holdout) <= HOLDOUT_MOST
        assert chosen.fresh
        trained |= training


def test_the_holdout_is_the_newest_untrained_traffic_and_may_be_trained_on_later() -> None:
    """The newest requests are held out; when newer ones have come they enter training."""
    first = split([request(number) for number in range(40)])
    assert [one.number for one in first.holdout] == list(range(28, 40))
    trained = {one.number for one in first.training}
    second = split([request(number, trained=number in trained) for number in range(80)])
    assert [one.number for one in second.holdout] == list(range(60, 80))
    assert {one.number for one in first.holdout} <= {one.number for one in second.training}


def test_a_small_replay_waits() -> None:
    """Of 20 requests no more than half are held out, too few for the gate; 24 are enough."""
    assert not split([request(number) for number in range(20)]).enough
    assert split([request(number) for number in range(2 * MINIMUM_REQUESTS)]).enough


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 4000), st.integers(0, 9))
def test_the_replay_fits_its_capacity_and_keeps_the_newest(rows: list[int], capacity: int, seed: int) -> None:
    """After eviction the rows fit, half of them at most are given to older traffic, and order is kept."""
    stored = [request(number, rows=size) for number, size in enumerate(rows)]
    gone = set(evictions(stored, capacity, seed))
    kept = [one for one in stored if one.number not in gone]
    assert sum(one.rows for one in kept) <= capacity
    if sum(rows) <= capacity:
        assert not gone
    newest = 0
    for one in reversed(stored):
        newest += one.rows
        if newest > capacity // 2:
            break
        assert one.number not in gone


def test_what_is_older_than_the_retention_or_beyond_its_bytes_expires() -> None:
    """Age counts for each request; bytes go to the newest requests, of any age that is allowed."""
    stored = [request(number) for number in range(10)]
    assert expired(stored, 3.0, None, lambda _: 100) == (0, 1, 2)
    assert sorted(expired(stored, 3.0, 450, lambda _: 100)) == [0, 1, 2, 3, 4, 5]
    assert expired(stored, 0.0, None, lambda _: 100) == ()


def test_the_reservoir_is_a_fair_sample_of_all_older_traffic() -> None:
    """Feeding requests one by one, the old half of the replay holds early and late requests alike."""
    early = late = 0
    for seed in range(30):
        stored: list[StoredRequest] = []
        for number in range(200):
            stored.append(request(number, rows=10))
            gone = set(evictions(stored, 400, seed))
            stored = [one for one in stored if one.number not in gone]
        older = [one.number for one in stored if one.number < 180]
        early += sum(number < 90 for number in older)
        late += sum(number >= 90 for number in older)
    assert 0.8 < early / late < 1.25


def test_update_sizes_scale_with_data_within_the_budget() -> None:
    """New text gets eight passes, known text three, within the budget; batches grow with the update."""
    assert token_steps(1_000, 500, 60_000) == 9_500
    assert token_steps(50_000, 0, 60_000) == 60_000
    assert batch_tokens(60_000) == 256
    assert batch_tokens(25_600) == 200
    assert batch_tokens(100) == 128


def test_seeds_differ_between_tenants_and_updates_and_repeat() -> None:
    """The seed of an update is a function of the configured seed, the tenant and its number."""
    seeds = {update_seed(0, tenant, ordinal) for tenant in ("a", "b") for ordinal in (1, 2)}
    assert len(seeds) == 4
    assert update_seed(0, "a", 1) == update_seed(0, "a", 1) != update_seed(1, "a", 1)
