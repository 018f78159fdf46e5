"""Whose data a turbo was trained with: `lineage.json` beside its weights.

Traces of tenants enter a shared turbo only with their consent (`share`). When one of them is erased, the
turbo must be retired too, and this file is how anybody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "lineage.json"


class LineageError(ValueError):
    """A lineage file cannot be read; the message names it."""


class Lineage(msgspec.Struct, frozen=True):
    """Content of the file."""

    tenants: list[str]
    """Every tenant whose traces were trained on."""


def turbo_lineage(turbo: Path) -> frozenset[str]:
    """Tenants whose data is in a turbo; none where the directory does not say.

    Args:
        turbo: Directory of a turbo checkpoint.

    Raises:
        LineageError: the file is damaged: whether a tenant is in it is never guessed.
    """
    path = turbo / FILE
    try:
        return frozenset(msgspec.json.decode(path.read_bytes(), type=Lineage).tenants)
    except FileNotFoundError:
        return frozenset()
    except msgspec.MsgspecError as error:
        raise LineageError(f'{path} is damaged ({error}): it must read {{"tenants": [...]}}') from error
