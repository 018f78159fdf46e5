"""Deterministic orders and splits, the same on every machine and for every Python hash seed."""

from __future__ import annotations

import hashlib
from itertools import product
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adaptive.workloads.prompt import Prompt

A = TypeVar("A")
B = TypeVar("B")


def rank(key: str) -> bytes:
    """Where a key stands in a shuffled order: its checksum."""
    return hashlib.sha256(key.encode()).digest()


def shuffled(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """The prompts in an order that depends on their keys only."""
    return tuple(sorted(prompts, key=lambda prompt: rank(prompt.key)))


def cross(
    first: Sequence[A], second: Sequence[B], held_out: tuple[int, int]
) -> tuple[tuple[tuple[A, B], ...], tuple[tuple[A, B], ...]]:
    """Pairs for traffic and for probe, of which neither shares a first or a second element with the other.

    Args:
        first: Subjects; the last `held_out[0]` of them are the probe's.
        second: Circumstances; the last `held_out[1]` of them are the probe's.
        held_out: How many of each are the probe's.

    Returns:
        Traffic pairs and probe pairs; pairs of a held-out and a kept element are in neither.
    """
    cut_first, cut_second = len(first) - held_out[0], len(second) - held_out[1]
    traffic = tuple(product(first[:cut_first], second[:cut_second]))
    probe = tuple(product(first[cut_first:], second[cut_second:]))
    return traffic, probe
