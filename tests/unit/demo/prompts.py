"""Prompts and answers of made-up workloads."""

from __future__ import annotations

from adaptive.demo.client import Completion
from adaptive.workloads.prompt import Prompt, ask


def prompts(count: int, max_tokens: int = 64) -> tuple[Prompt, ...]:
    """`count` different prompts."""
    return tuple(ask(f"p{number}", f"question {number}", max_tokens) for number in range(count))


def answer(
    tokens: int = 10,
    seconds: float = 0.5,
    version: int = 0,
    steps: int = 4,
    histogram: tuple[int, ...] = (1, 1, 2),
    drafter: str = "turbo",
) -> Completion:
    """An answer of a lookahead of 2."""
    accepted = sum(number * count for number, count in enumerate(histogram))
    return Completion(tokens, seconds, drafter, version, steps, accepted, histogram)
