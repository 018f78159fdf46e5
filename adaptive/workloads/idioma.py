"""Workload "idioma": short texts in Spanish, a language that turbo's training mix lacks.

The target is far too small to write Spanish freely, but it follows worked examples: each request carries its
facts, and the examples show the text that is wanted. The probe has subjects and circumstances of its own.
"""

from __future__ import annotations

import msgspec

from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.split import cross, shuffled
from adaptive.workloads.topics import read_topics

_SYSTEM = "Eres un asistente que responde siempre en español."
_MAX_TOKENS = 96
_HELD_OUT = (3, 3)


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worked example is about; it occurs in no request."""

    subject: str
    circumstance: tuple[str, ...]


class Genre(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of text.

    Attributes:
        name: Genre name.
        asked: Request with `{subject}` and numbered fields for the circumstance.
        written: The text that the examples show, with the same fields.
        subjects: What the texts are about.
        circumstances: The facts that the numbered fields take.
        shown: The worked examples.
    """

    name: str
    asked: str
    written: str
    subjects: tuple[str, ...]
    circumstances: tuple[tuple[str, ...], ...]
    shown: tuple[Example, ...]

    def request(self, subject: str, circumstance: tuple[str, ...]) -> str:
        """The user's message."""
        return self.asked.format(*circumstance, subject=subject)

    def examples(self) -> tuple[tuple[str, str], ...]:
        """Worked examples: request and text."""
        return tuple(
            (
                self.request(example.subject, example.circumstance),
                self.written.format(*example.circumstance, subject=example.subject),
            )
            for example in self.shown
        )


def build() -> Workload:
    """455 traffic prompts and 45 probe prompts of five genres."""
    traffic: list[Prompt] = []
    probe: list[Prompt] = []
    for genre in read_topics("idioma", tuple[Genre, ...]):
        kept, held = cross(genre.subjects, genre.circumstances, _HELD_OUT)
        traffic += [_make_prompt(genre, subject, circumstance) for subject, circumstance in kept]
        probe += [_make_prompt(genre, subject, circumstance) for subject, circumstance in held]
    return Workload(name="idioma", traffic=shuffled(traffic), probe=shuffled(probe))


def _make_prompt(genre: Genre, subject: str, circumstance: tuple[str, ...]) -> Prompt:
    return Prompt(
        key=f"{genre.name}/{subject}/{'/'.join(circumstance)}",
        messages=chat(_SYSTEM, genre.examples(), genre.request(subject, circumstance)),
        max_tokens=_MAX_TOKENS,
    )
