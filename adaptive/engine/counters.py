"""Totals per tenant, arm and version, counted as vLLM counts verify steps."""

from __future__ import annotations

import bisect

from adaptive.contracts import CONTEXT_BUCKETS, Arm, ArmCounters


class Counters:
    """Running totals since the engine started."""

    def __init__(self, lookahead: int) -> None:
        self._lookahead = lookahead
        self._totals: dict[tuple[str, Arm, int], ArmCounters] = {}

    def of(self, tenant: str, arm: Arm, version: int) -> ArmCounters:
        """The totals of one tenant, arm and version, created at zero."""
        key = (tenant, arm, version)
        found = self._totals.get(key)
        if found is None:
            buckets = len(CONTEXT_BUCKETS) + 1
            found = self._totals[key] = ArmCounters(
                tenant=tenant,
                arm=arm,
                version=version,
                accepted_per_position=[0] * self._lookahead,
                lookahead_chosen=[0] * (self._lookahead + 1),
                verify_steps_by_context=[0] * buckets,
                accepted_by_context=[0] * buckets,
            )
        return found

    def forget(self, tenant: str) -> int:
        """Drop the totals of a tenant; returns how many there were."""
        gone = [key for key in self._totals if key[0] == tenant]
        for key in gone:
            del self._totals[key]
        return len(gone)

    def looked_ahead(self, totals: ArmCounters, drafted: int) -> None:
        """Count the number of drafts of one step of a request that may speculate."""
        totals.lookahead_chosen[drafted] += 1

    def verify_step(
        self, totals: ArmCounters, drafted: int, accepted: int, *, early: bool = False, context: int = 0
    ) -> None:
        """Count one verify step that had drafts.

        Args:
            totals: of its tenant, arm and version.
            drafted: drafts verified.
            accepted: of these.
            early: whether drafting stopped because the next draft did not pay.
            context: tokens before the step.
        """
        totals.verify_steps += 1
        totals.drafted += drafted
        totals.accepted += accepted
        totals.early_stops += early
        for position in range(accepted):
            totals.accepted_per_position[position] += 1
        bucket = bisect.bisect_right(CONTEXT_BUCKETS, context)
        totals.verify_steps_by_context[bucket] += 1
        totals.accepted_by_context[bucket] += accepted

    def snapshot(self) -> list[ArmCounters]:
        """All totals."""
        return list(self._totals.values())
