"""Workload "format": a house markup for records that the system prompt asks for and worked examples show.

The markup (`<<ticket>>`, `~field:`, `<<end>>`) occurs nowhere in turbo's training mix. Worked examples come as earlier
turns, because the target copies the style of its own turns but ignores a style that is only described.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.records_topics import KINDS
from adaptive.workloads.split import cross, shuffled

if TYPE_CHECKING:
    from adaptive.workloads.records_topics import Kind

_SYSTEM = "You write every note as a record in the house markup, one field per line, and nothing else."
_MAX_TOKENS = 96
_HELD_OUT = (4, 4)


def build() -> Workload:
    """432 traffic prompts and 48 probe prompts of three kinds of record."""
    traffic: list[Prompt] = []
    probe: list[Prompt] = []
    for kind in KINDS:
        kept, held = cross(kind.subjects, kind.events, _HELD_OUT)
        traffic += [_make_prompt(kind, subject, event) for subject, event in kept]
        probe += [_make_prompt(kind, subject, event) for subject, event in held]
    return Workload(
        name="format",
        traffic=shuffled(traffic, lambda prompt: prompt.key),
        probe=shuffled(probe, lambda prompt: prompt.key),
    )


def _make_prompt(kind: Kind, subject: str, event: str) -> Prompt:
    return Prompt(
        key=f"{kind.name}/{subject}/{event}",
        messages=chat(_SYSTEM, kind.examples, event.format(subject)),
        max_tokens=_MAX_TOKENS,
    )
