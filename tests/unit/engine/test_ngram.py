"""Copies come from the request, its own tenant's history and its prediction, and from nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.engine.ngram import NgramDrafter, Source
from adaptive.engine.suffix import SuffixIndex, warm_up

TOKENS = 1 << 10


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    warm_up()


def drafter(histories: int = 4) -> NgramDrafter:
    """A drafter with room for a few small histories."""
    return NgramDrafter(TOKENS, histories * SuffixIndex.bytes_for(TOKENS))


def serve(ngram: NgramDrafter, tenant: str, prompt: list[int], answer: list[int], name: str = "past") -> None:
    """One whole request."""
    ngram.begin(name, tenant, prompt)
    ngram.extend(name, answer)
    ngram.end(name)


def test_the_request_copies_its_own_prompt() -> None:
    """What followed the last tokens in the prompt is proposed."""
    ngram = drafter()
    ngram.begin("r", "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    ngram.extend("r", [3, 4, 5])
    (candidate,) = ngram.propose("r", None, 3)
    assert candidate.tokens == (6, 7, 8)
    assert (candidate.source, candidate.match_length, candidate.count) == (Source.REQUEST, 3, 1)
    assert candidate.shares == (1.0, 1.0, 1.0)


def test_history_begins_with_the_end_of_the_prompt() -> None:
    """The first tokens of an answer are found by the prompt's end, which enters the history with it."""
    ngram = drafter()
    serve(ngram, "a", [1, 2, 3], [50, 51, 52])
    ngram.begin("r", "a", [9, 1, 2, 3])
    (candidate,) = ngram.propose("r", None, 8)
    assert candidate.tokens == (50, 51, 52)
    assert candidate.source is Source.HISTORY


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=12), min_size=1, max_size=5),
    canary=st.lists(st.integers(1000, 1003), min_size=3, max_size=20),
)
def test_a_tenants_text_never_reaches_another(prompts: list[list[int]], canary: list[int]) -> None:
    """Tokens that only tenant A ever used are in no draft for B, even behind A's own context."""
    ngram = drafter()
    for number, prompt in enumerate(prompts):
        serve(ngram, "a", prompt, [*canary, *prompt, *canary], f"a{number}")
    ngram.begin("live", "a", prompts[0])
    ngram.extend("live", canary)
    for prompt in prompts:
        ngram.begin("b", "b", prompt)
        for first in (None, canary[0]):
            for candidate in ngram.propose("b", first, 8):
                copied = candidate.tokens[int(candidate.after_first) :]
                assert not set(copied) & set(canary)
        ngram.end("b")
    # The canary must be reachable for its own tenant, or this test proves nothing.
    ngram.begin("own", "a", prompts[0])
    own = ngram.propose("own", None, 8)
    assert any(set(candidate.tokens) & set(canary) for candidate in own)


def test_forgotten_text_is_gone_and_requests_in_flight_leave_none() -> None:
    """After forget neither the past nor a request that was running then can be copied."""
    ngram = drafter()
    serve(ngram, "a", [1, 2, 3], [50, 51, 52])
    ngram.begin("running", "a", [7, 7, 7])
    ngram.extend("running", [60, 61, 62, 63])
    ngram.forget("a")
    ngram.end("running")
    ngram.begin("r", "a", [1, 2, 3])
    assert ngram.propose("r", None, 8) == []
    ngram.extend("r", [60, 61, 62])
    assert ngram.propose("r", None, 8) == []


def test_a_request_that_must_not_be_remembered_is_not() -> None:
    """remember=False keeps an answer out of the history."""
    ngram = drafter()
    ngram.begin("x", "a", [1, 2, 3])
    ngram.extend("x", [50, 51, 52])
    ngram.end("x", remember=False)
    ngram.begin("r", "a", [1, 2, 3])
    assert ngram.propose("r", None, 8) == []


def test_histories_are_bounded_and_the_least_recent_goes() -> None:
    """More tenants than fit: the bytes stay, and the tenant that was quiet for longest starts anew."""
    ngram = drafter(histories=3)
    for number in range(5):
        serve(ngram, f"t{number}", [1, 2, 3], [50 + number] * 4)
    assert ngram.nbytes == 3 * SuffixIndex.bytes_for(TOKENS)
    found = {}
    for number in range(5):
        ngram.begin("r", f"t{number}", [1, 2, 3])
        found[number] = [candidate.tokens[0] for candidate in ngram.propose("r", None, 1)]
        ngram.end("r")
    assert found == {0: [], 1: [], 2: [52], 3: [53], 4: [54]}


def test_the_prediction_is_followed_from_the_first_token() -> None:
    """A prediction is drafted from its start, and found again behind a departure from it."""
    ngram = drafter()
    predicted = [10, 11, 12, 13, 14, 15, 16, 17]
    ngram.begin("r", "a", [1, 2, 3], predicted)
    assert ngram.propose("r", None, 3)[0].tokens == (10, 11, 12)
    ngram.extend("r", [10, 11])
    (candidate, *_) = ngram.propose("r", None, 3)
    assert (candidate.tokens, candidate.source) == ((12, 13, 14), Source.PREDICTION)
    ngram.extend("r", [99, 13, 14, 15])
    (candidate, *_) = ngram.propose("r", None, 3)
    assert (candidate.tokens, candidate.source) == ((16, 17), Source.PREDICTION)


def test_the_models_first_token_opens_another_copy() -> None:
    """Where the copy begins otherwise than the model, the text is searched again behind the model's token."""
    ngram = drafter()
    ngram.begin("r", "a", [1, 2, 3, 4, 5, 8, 2, 3, 9, 6, 7])
    ngram.extend("r", [1, 2, 3])
    plain, behind = ngram.propose("r", 9, 3)
    assert plain.tokens[0] == 4
    assert behind.after_first
    assert behind.tokens == (9, 6, 7)
    assert len(behind.shares) == 2


def test_a_long_answer_outgrows_the_room_of_its_prompt() -> None:
    """The index of a request takes more room when the answer needs it, and still finds the prompt."""
    ngram = drafter()
    ngram.begin("r", "a", [1, 2, 3, 4])
    ngram.extend("r", list(range(100, 1100)))
    ngram.extend("r", [1, 2, 3])
    (candidate,) = ngram.propose("r", None, 1)
    assert candidate.tokens == (4,)


def test_too_small_a_budget_is_refused() -> None:
    """Bytes that hold no history are refused with what to change."""
    with pytest.raises(ValueError, match="raise it or lower history_tokens"):
        NgramDrafter(TOKENS, 10)
