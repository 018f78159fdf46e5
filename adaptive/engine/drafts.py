"""Drafts on their way from the worker to the scheduler, with who made them and what the next step will do."""

from __future__ import annotations

import dataclasses

from vllm.v1.outputs import DraftTokenIds

from adaptive.contracts import Arm

Source = tuple[Arm, int]
"""Arm and adapter version (0 unless the arm is the adapter)."""


@dataclasses.dataclass
class SourcedDraftTokenIds(DraftTokenIds):
    """vLLM's message plus what the adaptive scheduler needs of the worker's decisions."""

    made_by: list[Source] = dataclasses.field(default_factory=list)
    """Per request, in the order of `req_ids`."""
    drafter_off: bool = False
    """Whether the next step skips the drafter's first pass for requests that decode: what that step computes
    leaves a gap in their drafter KV cache, so its blocks must not enter the prefix cache."""
    given_up: list[str] = dataclasses.field(default_factory=list)
    """Requests that stay without speculation until they end: their gap is never closed."""
