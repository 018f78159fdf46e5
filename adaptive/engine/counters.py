"""Totals per tenant, arm and version, counted as vLLM counts verify steps."""

from __future__ import annotations

from adaptive.contracts import Arm, ArmCounters


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
            found = self._totals[key] = ArmCounters(
                tenant=tenant, arm=arm, version=version, accepted_per_position=[0] * self._lookahead
            )
        return found

    def forget(self, tenant: str) -> int:
        """Drop the totals of a tenant; returns how many there were."""
        gone = [key for key in self._totals if key[0] == tenant]
        for key in gone:
            del self._totals[key]
        return len(gone)

    def verify_step(self, totals: ArmCounters, drafted: int, accepted: int) -> None:
        """Count one verify step that had drafts."""
        totals.verify_steps += 1
        totals.drafted += drafted
        totals.accepted += accepted
        for position in range(accepted):
            totals.accepted_per_position[position] += 1

    def snapshot(self) -> list[ArmCounters]:
        """All totals."""
        return list(self._totals.values())
