"""Workload "idioma": short texts in Spanish, a language that turbo's training mix lacks.

The target is far too small to write Spanish freely, but it follows worked examples: each request carries its
facts, and the examples show the text that is wanted. Probe prompts use subjects and circumstances of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive.workloads.idioma_topics import GENRES
from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.split import cross, shuffled

if TYPE_CHECKING:
    from adaptive.workloads.idioma_topics import Genre

_SYSTEM = "Eres un asistente que responde siempre en español."
_MAX_TOKENS = 96
_HELD_OUT = (3, 3)


def build() -> Workload:
    """455 traffic prompts and 45 probe prompts of five genres."""
    traffic: list[Prompt] = []
    probe: list[Prompt] = []
    for genre in GENRES:
        kept, held = cross(genre.subjects, genre.circumstances, _HELD_OUT)
        traffic += [_make_prompt(genre, subject, circumstance) for subject, circumstance in kept]
        probe += [_make_prompt(genre, subject, circumstance) for subject, circumstance in held]
    return Workload(
        name="idioma",
        traffic=shuffled(traffic, lambda prompt: prompt.key),
        probe=shuffled(probe, lambda prompt: prompt.key),
    )


def _make_prompt(genre: Genre, subject: str, circumstance: tuple[str, ...]) -> Prompt:
    return Prompt(
        key=f"{genre.name}/{subject}/{'/'.join(circumstance)}",
        messages=chat(_SYSTEM, genre.examples(), genre.request(subject, circumstance)),
        max_tokens=_MAX_TOKENS,
    )
