"""Which tenant's adapter lives in which row of the adapter buffers.

Pure bookkeeping, no tensors: slot 0 is turbo and stays all zeros; a slot in use is never overwritten. A
commit places the new version in another slot and flips the tenant's mapping, so that requests in flight keep
the slot they were admitted with until they end (or are moved at a step boundary).
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final

from adaptive.contracts import SlotUsage

if TYPE_CHECKING:
    from collections.abc import Callable

TURBO_SLOT: Final = 0
_CANARY: Final = "~canary"
"""No tenant's id holds a tilde."""


def owner(tenant: str, *, canary: bool) -> str:
    """Name under which a tenant's champion, or its challenger on trial, holds a slot of the table."""
    return tenant + _CANARY if canary else tenant


def owned_by(name: str) -> tuple[str, bool]:
    """Tenant of an owner's name, and whether it is the challenger's."""
    return name.removesuffix(_CANARY), name.endswith(_CANARY)


class NoFreeSlotError(RuntimeError):
    """No slot may be overwritten at the moment."""


@dataclasses.dataclass(slots=True)
class Slot:
    """One row of the adapter buffers; `tenant` is None while it is free."""

    index: int
    tenant: str | None = None
    version: int = 0
    weight: float = 0.0
    requests: int = 0
    current: bool = False
    """Whether new requests of the tenant use this slot; False once a newer version took over."""
    last_used: int = 0
    written_at: float = 0.0
    """On the table's clock, in seconds."""


class SlotTable:
    """Maps tenants to slots with reference counts and least-recently-used eviction.

    An adapter that came in less than `residence_seconds` ago is not evicted: with more active tenants than
    slots, each load then serves for a while, and the time spent on loads stays bounded.
    """

    def __init__(
        self,
        slots: int,
        residence_seconds: float = 0.0,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        if slots < 2:
            raise ValueError(f"slots must be at least 2 (slot 0 is turbo), got {slots}: raise ADAPTIVE_SLOTS")
        self._slots = [Slot(index) for index in range(slots)]
        self._current: dict[str, Slot] = {}
        self._usage: dict[str, SlotUsage] = {}
        self._clock = 0
        self._residence_seconds = residence_seconds
        self._seconds = seconds

    def acquire(self, tenant: str, *, moved: bool = False) -> tuple[int, int]:
        """Take the tenant's current slot for a request; returns (slot, version), (0, 0) for turbo.

        A request that is `moved` from another slot is no new hit or miss.
        """
        slot = self._current.get(tenant)
        if not moved:
            usage = self._used(tenant)
            usage.hits += slot is not None
            usage.misses += slot is None
        if slot is None:
            return TURBO_SLOT, 0
        self._clock += 1
        slot.requests += 1
        slot.last_used = self._clock
        return slot.index, slot.version

    def release(self, index: int) -> None:
        """A request that acquired slot `index` ended; a superseded slot without requests becomes free."""
        if index == TURBO_SLOT:
            return
        slot = self._slots[index]
        slot.requests -= 1
        assert slot.requests >= 0, f"slot {index} released more often than acquired"
        if slot.requests == 0 and not slot.current:
            self._slots[index] = Slot(index)

    def placeable(self, tenant: str) -> bool:
        """Whether `reserve` would find a slot now."""
        return self._find(tenant, evict=True) is not None

    def reserve(self, tenant: str, *, evict: bool = True) -> tuple[int, str | None]:
        """Find a slot whose row may be overwritten for `tenant`'s next version.

        Args:
            tenant: whose version it is.
            evict: whether another tenant's idle adapter may have to go.

        Returns:
            The slot, and the tenant that lost its adapter, if one did.

        Raises:
            NoFreeSlotError: no slot may be overwritten.
        """
        slot = self._find(tenant, evict=evict)
        if slot is None:
            raise NoFreeSlotError(
                f"no free adapter slot for tenant {tenant!r}: all {len(self._slots) - 1} draft for requests "
                "in flight, or came in a moment ago; turbo serves until one is free, or raise ADAPTIVE_SLOTS"
            )
        evicted = slot.tenant if slot.tenant != tenant else None
        if slot.tenant is not None:
            self._current.pop(slot.tenant, None)
        if evicted is not None:
            self._used(evicted).evictions += 1
        self._slots[slot.index] = Slot(slot.index)
        return slot.index, evicted

    def _find(self, tenant: str, *, evict: bool) -> Slot | None:
        idle = [slot for slot in self._slots[1:] if slot.requests == 0]
        free = next((slot for slot in idle if slot.tenant is None), None)
        if free is not None:
            return free
        own = self._current.get(tenant)
        if own is not None and own.requests == 0:
            return own
        latest = self._seconds() - self._residence_seconds
        settled = [slot for slot in idle if slot.written_at <= latest] if evict else []
        return min(settled, key=lambda slot: slot.last_used, default=None)

    def commit(self, tenant: str, version: int, index: int, weight: float) -> None:
        """Make slot `index` (reserved, its row written) the tenant's current one."""
        self._clock += 1
        self.retire(tenant)
        slot = Slot(
            index,
            tenant,
            version,
            weight,
            requests=0,
            current=True,
            last_used=self._clock,
            written_at=self._seconds(),
        )
        self._used(tenant).loads += 1
        self._slots[index] = slot
        self._current[tenant] = slot

    def retire(self, tenant: str) -> None:
        """Send the tenant's new requests back to turbo; its slot is freed when its requests have ended."""
        slot = self._current.pop(tenant, None)
        if slot is None:
            return
        slot.current = False
        if slot.requests == 0:
            self._slots[slot.index] = Slot(slot.index)

    def set_weight(self, tenant: str, weight: float) -> int | None:
        """Record a new weight; returns the slot whose row must be changed, None if the tenant has none."""
        slot = self._current.get(tenant)
        if slot is None:
            return None
        slot.weight = weight
        return slot.index

    def current_version(self, tenant: str) -> int:
        """Version new requests of the tenant draft with, 0 for turbo."""
        slot = self._current.get(tenant)
        return slot.version if slot is not None else 0

    def occupied(self) -> list[Slot]:
        """Every slot that holds an adapter, superseded ones in use included."""
        return [slot for slot in self._slots if slot.tenant is not None]

    def usage(self) -> list[SlotUsage]:
        """Hits, misses, evictions and loads of every tenant that asked for an adapter; canaries left out."""
        return [usage for name, usage in self._usage.items() if not owned_by(name)[1]]

    def forget(self, tenant: str) -> None:
        """Drop the totals of a tenant."""
        self._usage.pop(tenant, None)

    def _used(self, tenant: str) -> SlotUsage:
        return self._usage.setdefault(tenant, SlotUsage(tenant=tenant))
