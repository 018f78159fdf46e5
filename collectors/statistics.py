"""Counts over traces: what drafted for whom, and how much of it was accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collectors.inspection import Found, Selection


class Group(NamedTuple):
    """What is counted together."""

    tenant: str
    arm: Arm
    version: int


class GroupCounts(msgspec.Struct):
    """Totals of one group; a record in which several arms drafted counts in each of their groups."""

    tenant: str
    arm: Arm
    version: int
    records: int = 0
    requests: int = 0
    verify_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tau: float = 1.0
    """Acceptance length: 1 + accepted / verify steps."""
    alpha: float | None = None
    """Acceptance rate: accepted / drafted; None where nothing was drafted."""
    acceptance_per_position: list[float] = []
    """Share of verify steps whose first i + 1 drafts were all accepted."""
    features_share: float = 0.0
    """Share of records whose features were captured too."""
    bytes: int = 0
    """Of the records' values."""


class _Tally:
    def __init__(self) -> None:
        self.requests: Final[set[str]] = set()
        self.records = self.steps = self.drafted = self.accepted = self.featured = self.bytes = 0
        self.positions: Final[list[int]] = []


class TraceStatistics:
    """Adds traces up."""

    def __init__(self, selection: Selection) -> None:
        self._selection: Final = selection
        self._tallies: Final[dict[Group, _Tally]] = {}

    def add(self, found: Found) -> None:
        """Count a trace."""
        trace = found.trace
        seen: set[Group] = set()
        for step in trace.steps:
            if not self._selection.step(step):
                continue
            group = Group(trace.tenant, step.arm, step.version)
            tally = self._tallies.setdefault(group, _Tally())
            tally.steps += 1
            tally.drafted += len(step.drafted)
            tally.accepted += step.accepted
            tally.positions.extend([0] * (step.accepted - len(tally.positions)))
            for position in range(step.accepted):
                tally.positions[position] += 1
            seen.add(group)
        for group in seen:
            tally = self._tallies[group]
            tally.records += 1
            tally.requests.add(trace.request_id)
            tally.featured += trace.features is not None
            tally.bytes += len(found.record.value or b"")

    def groups(self) -> list[GroupCounts]:
        """Totals, by tenant, arm and version."""
        return [
            GroupCounts(
                *group,
                records=tally.records,
                requests=len(tally.requests),
                verify_steps=tally.steps,
                drafted=tally.drafted,
                accepted=tally.accepted,
                tau=1.0 + tally.accepted / tally.steps,
                alpha=tally.accepted / tally.drafted if tally.drafted else None,
                acceptance_per_position=[count / tally.steps for count in tally.positions],
                features_share=tally.featured / tally.records,
                bytes=tally.bytes,
            )
            for group, tally in sorted(self._tallies.items())
        ]
