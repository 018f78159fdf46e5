"""Workload "chat": general questions in English, the kind that turbo's mix covers, on topics of their own."""

from __future__ import annotations

from adaptive.workloads.prompt import Prompt, Workload, ask
from adaptive.workloads.split import cross, shuffled
from adaptive.workloads.topics import Grid, read_topics

_MAX_TOKENS = 128
_HELD_OUT = (6, 7)


def build() -> Workload:
    """336 traffic prompts and 42 probe prompts."""
    grid = read_topics("chat", Grid)
    kept, held = cross(grid.subjects, grid.templates, _HELD_OUT)
    return Workload(name="chat", traffic=_make_prompts(kept), probe=_make_prompts(held))


def _make_prompts(pairs: tuple[tuple[str, str], ...]) -> tuple[Prompt, ...]:
    texts = [template.format(topic) for topic, template in pairs]
    return shuffled(ask(text, text, _MAX_TOKENS) for text in texts)
