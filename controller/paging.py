"""Cursor pages in the list shape of the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from fastapi import Query
from pydantic import BaseModel

from controller.errors import InvalidFieldError
from controller.schemas import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST: Final = 1000
LARGEST_ID: Final = 2**31 - 1
Limit = Annotated[int, Query(ge=1, le=MOST, description="Most items to return.")]
After = Annotated[
    str | None,
    Query(max_length=128, pattern=r"^[\x21-\x7e]*$", description="Id of the last item of the page before."),
]
ItemT = TypeVar("ItemT", bound=BaseModel)


def number_after(after: str | None, separator: str) -> int | None:
    """Read the number behind the separator of a cursor such as `decision_12` or `acme@3`.

    Raises:
        InvalidFieldError: it has none.
    """
    if after is None:
        return None
    number = after.rpartition(separator)[2]
    if not (number.isascii() and number.isdecimal() and int(number) <= LARGEST_ID):
        raise InvalidFieldError("after", f"{after!r} is no id of this list: take last_id of the page before")
    return int(number)


def page(items: Sequence[ItemT], ids: Sequence[str], limit: int) -> Page[ItemT]:
    """Make a page of the first `limit` items; more than that were read to know whether there are more."""
    shown, names = list(items[:limit]), list(ids[:limit])
    return Page(
        data=shown,
        first_id=names[0] if names else None,
        last_id=names[-1] if names else None,
        has_more=len(items) > limit,
    )
