"""Requests that wait for assembly, one queue per tenant, served in turn."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

TURN: Final = 4
"""Requests of a tenant per turn: neighbours in the log share a feature object, which is read once."""


class Waiting(NamedTuple):
    """A complete request."""

    tenant: str
    number: int
    since: float
    """Monotonic seconds."""


class FairQueue:
    """Round robin over the tenants that have something waiting, in order of arrival within each.

    However much one tenant sends, another waits for one turn of every tenant at most. Rebuilt from the ledger
    at every start, so nothing in it can be lost.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._queues: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self._turn = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def add(self, tenant: str, number: int) -> None:
        """Append a request to its tenant's queue."""
        self._queues.setdefault(tenant, deque()).append(Waiting(tenant, number, self._clock()))

    def next(self) -> Waiting | None:
        """Take the next request; None if nothing waits."""
        if not self._queues:
            return None
        tenant, queue = next(iter(self._queues.items()))
        taken = queue.popleft()
        self._turn += 1
        if not queue:
            del self._queues[tenant]
            self._turn = 0
        elif self._turn >= TURN:
            self._queues.move_to_end(tenant)
            self._turn = 0
        return taken

    def put_back(self, taken: Waiting) -> None:
        """Return the request taken last to the front."""
        self._queues.setdefault(taken.tenant, deque()).appendleft(taken)
        self._queues.move_to_end(taken.tenant, last=False)

    def waiting(self) -> dict[str, int]:
        """Requests by tenant."""
        return {tenant: len(queue) for tenant, queue in self._queues.items()}

    def oldest_seconds(self) -> float:
        """How long the one that waits longest has waited; 0 if nothing waits."""
        heads = [queue[0].since for queue in self._queues.values()]
        return self._clock() - min(heads) if heads else 0.0
