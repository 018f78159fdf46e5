"""Workload "format": a house markup for records (`<<ticket>>`, `~field::`, `<<end>>`) that turbo's mix lacks.

Worked examples come as earlier turns, because the target copies the style of its own turns but ignores a
style that is only described. The probe has subjects and events of its own.
"""

from __future__ import annotations

import msgspec

from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.split import cross, shuffled
from adaptive.workloads.topics import read_topics

_SYSTEM = "You write every note as a record in the house markup, one field per line, and nothing else."
_MAX_TOKENS = 96
_HELD_OUT = (4, 4)


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note and the lines of the record made of it."""

    note: str
    record: tuple[str, ...]


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of record.

    Attributes:
        name: Name of the record, as in its first line.
        examples: Worked examples.
        subjects: What the notes are about.
        events: Notes with `{}` for the subject.
    """

    name: str
    examples: tuple[Example, ...]
    subjects: tuple[str, ...]
    events: tuple[str, ...]


def build() -> Workload:
    """432 traffic prompts and 48 probe prompts of three kinds of record."""
    traffic: list[Prompt] = []
    probe: list[Prompt] = []
    for kind in read_topics("format", tuple[Kind, ...]):
        kept, held = cross(kind.subjects, kind.events, _HELD_OUT)
        traffic += [_make_prompt(kind, subject, event) for subject, event in kept]
        probe += [_make_prompt(kind, subject, event) for subject, event in held]
    return Workload(name="format", traffic=shuffled(traffic), probe=shuffled(probe))


def _make_prompt(kind: Kind, subject: str, event: str) -> Prompt:
    shots = tuple((example.note, "\n".join(example.record)) for example in kind.examples)
    return Prompt(
        key=f"{kind.name}/{subject}/{event}",
        messages=chat(_SYSTEM, shots, event.format(subject)),
        max_tokens=_MAX_TOKENS,
    )
