"""Totals per tenant, arm and version."""

from __future__ import annotations

from adaptive.contracts import Arm
from adaptive.engine.counters import Counters


def test_verify_steps_are_counted_by_position() -> None:
    """accepted_per_position[i] counts the verify steps whose first i+1 drafts were all accepted."""
    counters = Counters(4)
    totals = counters.of("acme", Arm.TURBO, 0)
    for drafted, accepted in ((4, 4), (4, 2), (3, 0), (4, 1)):
        counters.verify_step(totals, drafted, accepted)
    assert (totals.verify_steps, totals.drafted, totals.accepted) == (4, 15, 7)
    assert totals.accepted_per_position == [3, 2, 1, 1]


def test_tenants_arms_and_versions_are_kept_apart() -> None:
    """Each triple has its own totals, found again under the same triple."""
    counters = Counters(2)
    triples = [("a", Arm.TURBO, 0), ("b", Arm.TURBO, 0), ("a", Arm.ADAPTER, 1), ("a", Arm.ADAPTER, 2)]
    for number, triple in enumerate(triples, start=1):
        counters.of(*triple).emitted += number
    assert [counters.of(*triple).emitted for triple in triples] == [1, 2, 3, 4]
    assert [(row.tenant, row.arm, row.version) for row in counters.snapshot()] == triples
    assert all(row.accepted_per_position == [0, 0] for row in counters.snapshot())
