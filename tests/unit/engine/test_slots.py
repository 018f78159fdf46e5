"""Which adapter lives in which row."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from adaptive.contracts import SlotUsage
from adaptive.engine.slots import TURBO_SLOT, NoFreeSlotError, SlotTable, owned_by, owner

SLOTS = 4
TENANTS = st.sampled_from(["a", "b", "c", "d", "e"])


class SlotMachine(RuleBasedStateMachine):
    """Requests, commits and retirements in any order, against a plain model of what each row holds."""

    requests: Bundle[tuple[int, tuple[str, int]]] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(SLOTS)
        self.rows: dict[int, tuple[str, int]] = {}
        self.current: dict[str, int] = {}
        self.held: Counter[int] = Counter()
        self.versions = 0

    def _forget_evicted(self) -> None:
        resident = {(slot.tenant, slot.version) for slot in self.table.occupied()}
        for tenant, version in list(self.current.items()):
            if (tenant, version) not in resident:
                del self.current[tenant]

    @rule(target=requests, tenant=TENANTS)
    def admit(
        self, tenant: str
    ) -> tuple[int, tuple[str, int]] | MultipleResults[tuple[int, tuple[str, int]]]:
        """A request gets its tenant's newest resident version, or turbo."""
        slot, version = self.table.acquire(tenant)
        assert version == self.current.get(tenant, 0) == self.table.current_version(tenant)
        if version == 0:
            assert slot == TURBO_SLOT
            return multiple()
        assert self.rows[slot] == (tenant, version)
        self.held[slot] += 1
        return slot, (tenant, version)

    @rule(request=consumes(requests))
    def end(self, request: tuple[int, tuple[str, int]]) -> None:
        """A request ends with the row it was admitted with."""
        slot, adapter = request
        assert self.rows[slot] == adapter
        self.table.release(slot)
        self.held[slot] -= 1

    @rule(tenant=TENANTS, weight=st.floats(0, 1))
    def commit(self, tenant: str, weight: float) -> None:
        """A new version never lands in a row that a request drafts with."""
        in_use = {slot for slot, count in self.held.items() if count}
        try:
            index, evicted = self.table.reserve(tenant)
        except NoFreeSlotError:
            assert in_use == set(range(1, SLOTS))
            return
        assert 0 < index < SLOTS
        assert index not in in_use
        self.versions += 1
        assert evicted != tenant
        assert evicted is None or evicted in self.current
        self._forget_evicted()
        assert evicted not in self.current
        self.table.commit(tenant, self.versions, index, weight)
        self.rows[index] = (tenant, self.versions)
        self.current[tenant] = self.versions
        self._forget_evicted()

    @rule(tenant=TENANTS)
    def retire(self, tenant: str) -> None:
        """New requests draft with turbo from now on."""
        self.table.retire(tenant)
        self.current.pop(tenant, None)
        assert self.table.acquire(tenant) == (TURBO_SLOT, 0)

    @rule(tenant=TENANTS, weight=st.floats(0, 1))
    def reweigh(self, tenant: str, weight: float) -> None:
        """A weight change names the tenant's current row, if it has one."""
        slot = self.table.set_weight(tenant, weight)
        assert (slot is None) == (tenant not in self.current)
        if slot is not None:
            assert self.rows[slot] == (tenant, self.current[tenant])

    @invariant()
    def counts_match(self) -> None:
        """Every row counts the requests that draft with it; every current version is resident."""
        occupied = {slot.index: slot for slot in self.table.occupied()}
        assert TURBO_SLOT not in occupied
        for index, count in self.held.items():
            assert (occupied[index].requests if index in occupied else 0) == count
        for index, slot in occupied.items():
            assert (slot.tenant, slot.version) == self.rows[index]
            assert slot.requests or slot.current
        assert {slot.tenant: slot.version for slot in occupied.values() if slot.current} == self.current


SlotMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSlotMachine = SlotMachine.TestCase


def put(table: SlotTable, tenant: str, version: int) -> int:
    """Commit a version."""
    index, _ = table.reserve(tenant)
    table.commit(tenant, version, index, 1.0)
    return index


def test_a_commit_leaves_requests_in_flight_where_they_are() -> None:
    """The old version stays resident until its last request ends, then its row is free again."""
    table = SlotTable(3)
    old = put(table, "acme", 1)
    assert table.acquire("acme") == (old, 1)
    new = put(table, "acme", 2)
    assert new != old
    assert table.acquire("acme") == (new, 2)
    assert [(slot.index, slot.version, slot.current) for slot in table.occupied()] == [
        (old, 1, False),
        (new, 2, True),
    ]
    table.release(old)
    assert [slot.index for slot in table.occupied()] == [new]


def test_the_least_recently_used_idle_tenant_is_evicted() -> None:
    """With every row taken, the tenant whose last request is longest ago goes back to turbo."""
    table = SlotTable(4)
    rows = {tenant: put(table, tenant, 1) for tenant in ("a", "b", "c")}
    for tenant in ("a", "c", "b", "a"):
        table.release(table.acquire(tenant)[0])
    assert put(table, "d", 1) == rows["c"]
    assert table.acquire("c") == (TURBO_SLOT, 0)
    assert table.acquire("a") == (rows["a"], 1)


def test_an_idle_tenant_reuses_its_own_row_before_evicting_another() -> None:
    """A full table takes a tenant's next version without harm to the others."""
    table = SlotTable(3)
    mine, other = put(table, "a", 1), put(table, "b", 1)
    assert put(table, "a", 2) == mine
    assert table.acquire("b") == (other, 1)


def test_rows_in_use_are_never_evicted() -> None:
    """With every row in use the commit is refused, with the remedy, and nothing changes."""
    table = SlotTable(3)
    for tenant in ("a", "b"):
        put(table, tenant, 1)
        table.acquire(tenant)
    before = table.occupied()
    with pytest.raises(NoFreeSlotError, match=r"tenant 'c': all 2 .*ADAPTIVE_SLOTS"):
        table.reserve("c")
    assert table.occupied() == before


def test_retire_keeps_the_row_of_requests_in_flight() -> None:
    """Turbo serves new requests at once; the row is freed when the last old request ends."""
    table = SlotTable(3)
    row = put(table, "acme", 1)
    table.acquire("acme")
    table.acquire("acme")
    table.retire("acme")
    assert table.acquire("acme") == (TURBO_SLOT, 0)
    table.release(row)
    assert [slot.requests for slot in table.occupied()] == [1]
    table.release(row)
    assert table.occupied() == []


def test_release_of_turbo_is_free() -> None:
    """Turbo is not counted: any number of requests share slot 0."""
    table = SlotTable(2)
    table.release(TURBO_SLOT)
    assert table.occupied() == []


def test_a_release_too_many_is_an_error() -> None:
    """Reference counts never go negative."""
    table = SlotTable(2)
    row = put(table, "acme", 1)
    with pytest.raises(AssertionError, match="more often than acquired"):
        table.release(row)


def test_an_adapter_that_just_came_in_is_not_evicted() -> None:
    """More active tenants than slots do not take a slot from each other with every request."""
    now = [0.0]
    table = SlotTable(2, residence_seconds=5.0, seconds=lambda: now[0])
    put(table, "a", 1)
    now[0] = 4.9
    assert not table.placeable("b")
    with pytest.raises(NoFreeSlotError, match="came in a moment ago"):
        table.reserve("b")
    assert table.acquire("a")[1] == 1
    table.release(1)
    assert table.placeable("a")  # its own next version may come any time
    now[0] = 5.0
    assert table.placeable("b")
    assert table.reserve("b") == (1, "a")


def test_without_eviction_only_free_and_own_rows_are_taken() -> None:
    """A policy alone takes no other tenant's slot: the request that needs it does."""
    table = SlotTable(2)
    put(table, "a", 1)
    with pytest.raises(NoFreeSlotError):
        table.reserve("b", evict=False)
    assert table.reserve("a", evict=False) == (1, None)


def test_usage_counts_what_tenants_got() -> None:
    """Hits, misses, evictions and loads per tenant; a request moved to a new version is no second hit."""
    table = SlotTable(2)
    assert table.acquire("a") == (TURBO_SLOT, 0)
    put(table, "a", 1)
    table.acquire("a")
    table.acquire("a", moved=True)
    for _ in range(2):
        table.release(1)
    put(table, "b", 1)
    assert table.usage() == [SlotUsage("a", 1, 1, 1, 1), SlotUsage("b", 0, 0, 0, 1)]
    table.forget("a")
    assert [usage.tenant for usage in table.usage()] == ["b"]


def test_a_table_needs_a_row_beside_turbo() -> None:
    """One slot would be turbo alone; the error names the setting."""
    with pytest.raises(ValueError, match="ADAPTIVE_SLOTS"):
        SlotTable(1)


def test_a_challenger_on_trial_stands_beside_the_champion() -> None:
    """Both are resident under one tenant; ending the trial leaves the champion, and usage counts it alone."""
    table = SlotTable(4)
    for canary, version in ((False, 1), (True, 2)):
        name = owner("acme", canary=canary)
        index, evicted = table.reserve(name)
        assert evicted is None
        table.commit(name, version, index, 1.0)
        assert owned_by(name) == ("acme", canary)
    trial = owner("acme", canary=True)
    assert [table.acquire("acme")[1], table.acquire(trial)[1]] == [1, 2]
    assert [usage.tenant for usage in table.usage()] == ["acme"]
    table.retire(trial)
    assert table.current_version("acme") == 1
    assert table.current_version(trial) == 0
