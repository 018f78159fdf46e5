"""Where in a stretch of text did the last few tokens occur before, and what followed?

A ring of token ids with two hash chains over it, as deflate (RFC 1951) finds its matches: one chain links the
positions whose last 3 tokens share a hash, one those whose last 8 do. Every array is allocated at the start,
so memory is exact, and text that the ring overwrites is forgotten without any bookkeeping.

The loops are compiled by numba, which vLLM brings along; the first call of a process compiles for seconds
(`warm_up`), later ones take microseconds.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit  # type: ignore[import-untyped]  # numba ships no types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SHORT: Final = 3
"""Shortest match in tokens: shorter ones continue wrongly too often (docs/adr/0010)."""
LONG: Final = 8
DEPTH: Final = 16
"""Occurrences looked at, newest first."""
MAX_MATCH: Final = 32
"""Tokens of context that are compared."""
BREAK: Final = -1
"""Separates texts; no match crosses it."""
_LAST_POSITION: Final = 2**31 - 2**20
_ARRAYS: Final = 5  # int32 per token of capacity


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """The longest earlier occurrences of a context and what followed them.

    Attributes:
        tokens: The continuation, each token the one that most of the remaining occurrences took.
        length: Tokens of context that match, at most MAX_MATCH.
        count: Occurrences of that length, at most DEPTH.
        votes: Per token, occurrences that agree with the continuation up to and with it.
        rivals: Per token, occurrences that agree up to the token before it.
        agreement: Share of all occurrences found, shorter ones too, that are followed by tokens[0].
    """

    tokens: tuple[int, ...]
    length: int
    count: int
    votes: tuple[int, ...]
    rivals: tuple[int, ...]
    agreement: float


class SuffixIndex:
    """The last `capacity` tokens of a text, searchable by what they end in.

    Args:
        capacity: Tokens kept, a power of two. Takes 20 bytes a token.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < LONG or capacity & (capacity - 1):
            raise ValueError(f"capacity is {capacity}: pass a power of two of at least {LONG}")
        self.capacity: Final = capacity
        self._ring = np.full(capacity, BREAK, np.int32)
        self._heads = np.full((2, capacity), -1, np.int32)
        self._previous = np.full((2, capacity), -1, np.int32)
        self._total = 0
        self._run = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, the same from the start to the end."""
        return self._ring.nbytes + self._heads.nbytes + self._previous.nbytes

    @staticmethod
    def bytes_for(capacity: int) -> int:
        """Bytes that an index of this capacity takes."""
        return _ARRAYS * 4 * capacity

    def __len__(self) -> int:
        return min(self._total, self.capacity)

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens; the oldest ones give way."""
        if self._total > _LAST_POSITION:
            self.clear()
        self._total, self._run = _insert(
            self._ring, self._heads, self._previous, self._total, self._run, np.asarray(tokens, np.int32)
        )

    def text(self) -> NDArray[np.int32]:
        """The tokens kept, oldest first, BREAK between texts."""
        kept = len(self)
        return self._ring[np.arange(self._total - kept, self._total) & (self.capacity - 1)]

    def end_text(self) -> None:
        """Close the current text: no later match crosses from it into the next."""
        if self._run:
            self.extend((BREAK,))

    def clear(self) -> None:
        """Forget everything, the bytes too."""
        self._ring.fill(BREAK)
        self._heads.fill(-1)
        self._previous.fill(-1)
        self._total = self._run = 0

    def match(self, context: NDArray[np.int32], most: int) -> Match | None:
        """The longest match of the end of `context` among the newest occurrences of its last tokens.

        Args:
            context: int32, the last tokens, newest last; at most MAX_MATCH are compared.
            most: Longest continuation wanted.

        Returns:
            None when the last SHORT tokens did not occur before with something after them.
        """
        tokens = np.empty(most, np.int32)
        votes = np.empty((2, most), np.int32)
        length, count, agreement, found = _match(
            self._ring, self._heads, self._previous, self._total, context, tokens, votes
        )
        if not found:
            return None
        return Match(
            tuple(tokens[:found].tolist()),
            length,
            count,
            tuple(votes[0, :found].tolist()),
            tuple(votes[1, :found].tolist()),
            agreement,
        )


def warm_up() -> None:
    """Compile the loops now (seconds) rather than within the first request."""
    index = SuffixIndex(LONG)
    index.extend((1, 2, 3, 4, 1, 2, 3))
    index.match(np.array((1, 2, 3), np.int32), 2)


@njit(nogil=True)
def _bucket(ring, mask, last, order):  # type: ignore[no-untyped-def]  # pragma: no cover  # compiled  # noqa: ANN001, ANN202
    """Hash of the `order` tokens that end at position `last`."""
    h = np.uint64(14695981039346656037)
    for position in range(last - order + 1, last + 1):
        h = (h ^ np.uint64(ring[position & mask])) * np.uint64(1099511628211)
    return np.int64((h ^ (h >> np.uint64(29))) & np.uint64(mask))


@njit(nogil=True)
def _insert(ring, heads, previous, total, run, tokens):  # type: ignore[no-untyped-def]  # pragma: no cover  # compiled  # noqa: ANN001, ANN202
    mask = len(ring) - 1
    for token in tokens:
        ring[total & mask] = token
        run = 0 if token < 0 else run + 1
        for kind, order in ((0, SHORT), (1, LONG)):
            if run >= order:
                bucket = _bucket(ring, mask, total, order)
                previous[kind, total & mask] = heads[kind, bucket]
                heads[kind, bucket] = total
        total += 1
    return total, run


@njit(nogil=True)
def _match(ring, heads, previous, total, context, tokens, votes):  # type: ignore[no-untyped-def]  # pragma: no cover  # compiled  # noqa: ANN001, ANN202, C901, PLR0912, PLR0915
    mask = len(ring) - 1
    oldest = max(total - len(ring), 0)
    size = len(context)
    ends = np.empty(DEPTH, np.int64)
    lengths = np.empty(DEPTH, np.int64)
    found = 0
    for kind, order in ((1, LONG), (0, SHORT)):
        if found or size < order:
            continue
        at = heads[kind, _bucket(context, -1, size - 1, order) & mask]
        while at >= oldest and found < DEPTH:
            length = 0
            while (
                length < size
                and length < MAX_MATCH
                and at - length >= oldest
                and ring[(at - length) & mask] == context[size - 1 - length]
            ):
                length += 1
            if length >= order and at + 1 < total and ring[(at + 1) & mask] >= 0:
                ends[found] = at
                lengths[found] = length
                found += 1
            following = previous[kind, at & mask]
            if following >= at:  # overwritten: the chain ends here
                break
            at = following
    if not found:
        return 0, 0, 0.0, 0
    best = lengths[:found].max()
    count = 0
    alive = np.empty(found, np.bool_)
    for i in range(found):
        alive[i] = lengths[i] == best
        count += alive[i]
    made = 0
    while made < len(tokens):
        chosen, most_votes, rivals = BREAK, 0, 0
        for i in range(found):
            if not alive[i]:
                continue
            rivals += 1
            place = ends[i] + 1 + made
            token = ring[place & mask] if place < total else BREAK
            if token < 0:
                continue
            agreeing = 0
            for k in range(found):
                other = ends[k] + 1 + made
                agreeing += alive[k] and other < total and ring[other & mask] == token
            if agreeing > most_votes:
                chosen, most_votes = token, agreeing
        if chosen < 0:
            break
        tokens[made] = chosen
        votes[0, made] = most_votes
        votes[1, made] = rivals
        for i in range(found):
            place = ends[i] + 1 + made
            alive[i] = alive[i] and place < total and ring[place & mask] == chosen
        made += 1
    agreement = 0
    for i in range(found):
        agreement += ring[(ends[i] + 1) & mask] == tokens[0]
    return best, count, agreement / found, made
