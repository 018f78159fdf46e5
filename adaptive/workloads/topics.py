"""Reads the prompt lists that we wrote, `data/<workload>.json`."""

from __future__ import annotations

from importlib import resources
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Templates with `{}` for a subject: every template goes with every subject."""

    subjects: tuple[str, ...]
    templates: tuple[str, ...]


def read_topics(workload: str, kind: type[T]) -> T:
    """The workload's list, checked against the type `kind`."""
    return msgspec.json.decode(
        (resources.files(__package__) / "data" / f"{workload}.json").read_bytes(), type=kind
    )
