"""Word lists of the broad prompts (topics.json), written for this recipe; no tenant prompt is in them."""

from __future__ import annotations

import json
from importlib import resources

_LISTS: dict[str, list[str]] = json.loads(resources.files(__package__).joinpath("topics.json").read_text())


def words(name: str) -> tuple[str, ...]:
    """The list called `name`, in its fixed order."""
    return tuple(_LISTS[name])
