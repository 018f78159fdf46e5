"""Which tenant's adapter lives in which row of the adapter buffers.

Pure bookkeeping, no tensors: slot 0 is turbo and stays all zeros; a slot in use is never overwritten. A
commit places the new version in another slot and flips the tenant's mapping, so that requests in flight keep
the slot they were admitted with until they end (or are moved at a step boundary).
"""

from __future__ import annotations

import dataclasses
from typing import Final

TURBO_SLOT: Final = 0


class NoFreeSlotError(RuntimeError):
    """Every slot is in use by requests in flight."""


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


class SlotTable:
    """Maps tenants to slots with reference counts and least-recently-used eviction."""

    def __init__(self, slots: int) -> None:
        if slots < 2:
            raise ValueError(f"slots must be at least 2 (slot 0 is turbo), got {slots}: raise ADAPTIVE_SLOTS")
        self._slots = [Slot(index) for index in range(slots)]
        self._current: dict[str, Slot] = {}
        self._clock = 0

    def acquire(self, tenant: str) -> tuple[int, int]:
        """Take the tenant's current slot for a request; returns (slot, version), (0, 0) for turbo."""
        slot = self._current.get(tenant)
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

    def reserve(self, tenant: str) -> int:
        """Find a slot whose row may be overwritten for `tenant`'s next version.

        Raises:
            NoFreeSlotError: all slots are in use.
        """
        idle = [slot for slot in self._slots[1:] if slot.requests == 0]
        for slot in idle:
            if slot.tenant is None:
                return slot.index
        own = self._current.get(tenant)
        if own is not None and own.requests == 0:
            return own.index
        if not idle:
            raise NoFreeSlotError(
                f"no free adapter slot for tenant {tenant!r}: all {len(self._slots) - 1} are drafting for "
                "requests in flight; retry when some have ended, or raise ADAPTIVE_SLOTS"
            )
        victim = min(idle, key=lambda slot: slot.last_used)
        if victim.tenant is not None:
            self._current.pop(victim.tenant, None)
        self._slots[victim.index] = Slot(victim.index)
        return victim.index

    def commit(self, tenant: str, version: int, index: int, weight: float) -> None:
        """Make slot `index` (reserved, its row written) the tenant's current one."""
        self._clock += 1
        self.retire(tenant)
        slot = Slot(index, tenant, version, weight, requests=0, current=True, last_used=self._clock)
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
