"""The suffix index finds what a search through the text finds, in memory that never grows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.engine.suffix import BREAK, DEPTH, LONG, MAX_MATCH, SHORT, SuffixIndex, warm_up

CAPACITY = 64


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Compiling takes seconds; no example should be the one that waits."""
    warm_up()


def longest(text: list[int], context: list[int]) -> list[tuple[int, int]]:
    """By brute force: (length, position behind) of every earlier occurrence of the context's end."""
    found = []
    for end in range(len(text) - 1):
        length = 0
        while (
            length < min(len(context), MAX_MATCH)
            and end - length >= 0
            and text[end - length] == context[-1 - length]
        ):
            length += 1
        if length >= SHORT and text[end + 1] >= 0:
            found.append((length, end + 1))
    return found


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(st.integers(0, 2), max_size=50),
    split=st.integers(0, 50),
    tail=st.integers(0, 20),
    more=st.lists(st.integers(0, 2), max_size=3),
)
def test_the_match_is_the_longest_one(text: list[int], split: int, tail: int, more: list[int]) -> None:
    """Length, count and first token are brute force's, wherever the text was cut into calls."""
    index = SuffixIndex(CAPACITY)
    index.extend(text[:split])
    index.extend(text[split:])
    context = (text[-tail:] if tail else text)[-MAX_MATCH:] + more
    expected = longest(text, context)
    match = index.match(np.array(context, np.int32), 4)
    if not expected:
        assert match is None
        return
    assert match is not None
    best = max(length for length, _ in expected)
    # The index looks at DEPTH occurrences of the last LONG tokens, else of the last SHORT.
    considered = [pair for pair in expected if pair[0] >= LONG] or expected
    newest = considered[-DEPTH:]
    assert match.length == max(length for length, _ in newest)
    if len(considered) <= DEPTH:
        assert match.length == best
    places = [place for length, place in newest if length == match.length]
    assert match.count == len(places)
    votes = [text[place] for place in places]
    assert match.votes[0] == max(votes.count(token) for token in votes)
    assert votes.count(match.tokens[0]) == match.votes[0]
    assert match.agreement == pytest.approx(
        [text[place] for _, place in newest].count(match.tokens[0]) / len(newest)
    )
    copies = [text[place : place + len(match.tokens)] for place in places]
    assert list(match.tokens) in copies


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 4), max_size=30), max_size=12))
def test_memory_is_exact_and_the_oldest_goes(texts: list[list[int]]) -> None:
    """The arrays never grow, and what is kept is the newest text, byte for byte."""
    index = SuffixIndex(CAPACITY)
    size = index.nbytes
    assert size == SuffixIndex.bytes_for(CAPACITY)
    kept: list[int] = []
    for text in texts:
        index.extend(text)
        index.end_text()
        kept += [*text, BREAK] if text else []
    assert index.nbytes == size
    assert len(index) <= CAPACITY
    assert index.text().tolist() == kept[-CAPACITY:]
    if len(kept) > CAPACITY:
        context = np.array(kept[-5:-1], np.int32)
        match = index.match(context, 4)
        if match is not None:
            joined = ",".join(map(str, kept[-CAPACITY:]))
            assert ",".join(map(str, context[-SHORT:].tolist() + list(match.tokens))) in joined


def test_no_match_crosses_texts() -> None:
    """A context that spans two texts is not found, and no continuation runs into the next text."""
    index = SuffixIndex(CAPACITY)
    index.extend((1, 2, 3))
    index.end_text()
    index.extend((4, 5, 6))
    index.end_text()
    assert index.match(np.array((2, 3, 4), np.int32), 4) is None
    assert index.match(np.array((1, 2, 3), np.int32), 4) is None
    index.extend((7, 8, 9, 10))
    index.end_text()
    index.extend((11, 12))
    match = index.match(np.array((7, 8, 9), np.int32), 4)
    assert match is not None
    assert match.tokens == (10,)


def test_clearing_leaves_no_token_behind() -> None:
    """After clear the bytes are gone, not only unreachable."""
    index = SuffixIndex(CAPACITY)
    index.extend((40_001, 40_002, 40_003, 40_004))
    index.clear()
    assert 40_003 not in index._ring
    assert index.match(np.array((40_001, 40_002, 40_003), np.int32), 4) is None


@pytest.mark.parametrize("capacity", [0, 4, 100])
def test_capacity_must_be_a_power_of_two(capacity: int) -> None:
    """Any other capacity is refused with what to pass."""
    with pytest.raises(ValueError, match="power of two"):
        SuffixIndex(capacity)
