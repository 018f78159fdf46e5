"""Turns between tenants."""

from __future__ import annotations

from learners.fairness import TURN, FairQueue


def drained(queue: FairQueue) -> list[tuple[str, int]]:
    """Everything, in order of service."""
    found = []
    while (taken := queue.next()) is not None:
        found.append((taken.tenant, taken.number))
    return found


def test_a_hot_tenant_delays_others_by_its_turn_only() -> None:
    """Whoever comes last is served after one turn of everybody before it."""
    queue = FairQueue()
    for number in range(1000):
        queue.add("hot", number)
    queue.add("cold", 1000)
    queue.add("mild", 1001)
    order = drained(queue)
    assert order.index(("cold", 1000)) == TURN
    assert order.index(("mild", 1001)) == TURN + 1
    assert [number for tenant, number in order if tenant == "hot"] == list(range(1000))


def test_everything_waits_once() -> None:
    """Counts and ages follow what is taken and put back; a request that was put back is the next."""
    now = 0.0
    queue = FairQueue(lambda: now)
    assert (len(queue), queue.next(), queue.oldest_seconds()) == (0, None, 0.0)
    queue.add("a", 1)
    now = 5.0
    queue.add("b", 2)
    assert (queue.waiting(), len(queue), queue.oldest_seconds()) == ({"a": 1, "b": 1}, 2, 5.0)
    taken = queue.next()
    assert taken is not None
    assert (queue.waiting(), queue.oldest_seconds()) == ({"b": 1}, 0.0)
    queue.put_back(taken)
    assert queue.oldest_seconds() == 5.0
    assert drained(queue) == [("a", 1), ("b", 2)]
