"""The n-gram arm: drafts copied from the request's own text, its tenant's history or the client's prediction.

Nothing here is shared between tenants: a history is reached by its tenant's id only, and a request looks into
its own text, its own prediction and its own tenant's history.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from adaptive.engine.suffix import LONG, MAX_MATCH, Match, SuffixIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

NOBODY: Final = ""
"""Tenant of requests that belong to none, or no longer: nothing of them is kept."""
_CONTEXT_KEPT: Final = MAX_MATCH
"""Prompt tokens that enter the history before an answer, so that its first tokens can be found."""


class Source(enum.StrEnum):
    """Where a continuation was copied from."""

    REQUEST = "request"
    HISTORY = "history"
    PREDICTION = "prediction"


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A continuation that could be drafted.

    Attributes:
        tokens: Draft tokens; the first is `first` where `after_first`.
        source: Where it was found.
        match_length: Tokens of context that match.
        count: Occurrences of that length.
        shares: Per copied token (not for `first`), the share of the occurrences in play that continue so.
        agreement: Share of all occurrences found that are followed by the first copied token.
        after_first: The copied part continues the context plus the model's first draft token.
    """

    tokens: tuple[int, ...]
    source: Source
    match_length: int
    count: int
    shares: tuple[float, ...]
    agreement: float
    after_first: bool = False


class _Request:
    __slots__ = ("answer", "index", "prediction", "prediction_index", "tail", "tenant")

    def __init__(self, tenant: str, prompt: Sequence[int], prediction: Sequence[int] | None) -> None:
        self.tenant = tenant
        self.tail = list(prompt[-MAX_MATCH:])
        self.answer: list[int] = []
        self.index = SuffixIndex(_capacity(len(prompt)))
        self.index.extend(prompt)
        self.prediction = tuple(prediction or ())
        self.prediction_index = SuffixIndex(_capacity(len(self.prediction))) if self.prediction else None
        if self.prediction_index is not None:
            self.prediction_index.extend(self.prediction)

    def extend(self, tokens: Sequence[int]) -> None:
        if len(self.index) + len(tokens) > self.index.capacity:  # a prompt's room is used up: take more
            text = self.index.text()
            self.index = SuffixIndex(_capacity(len(text) + len(tokens)))
            self.index.extend(text)
        self.index.extend(tokens)
        self.answer.extend(tokens)
        self.tail = (self.tail + list(tokens))[-MAX_MATCH:]

    @property
    def follows_prediction(self) -> bool:
        """Whether the answer so far is the beginning of the prediction."""
        return self.prediction[: len(self.answer)] == tuple(self.answer)


class NgramDrafter:
    """Finds continuations for requests in flight.

    Args:
        history_tokens: Tokens of history per tenant, a power of two (20 bytes each).
        history_bytes: Bytes of all histories; the tenant that used its own longest ago loses it first.
        prompt_tokens: Longest part of a prompt, counted from its end, that is searched.
    """

    def __init__(
        self, history_tokens: int = 1 << 16, history_bytes: int = 256 << 20, prompt_tokens: int = 1 << 15
    ) -> None:
        self._tokens: Final = history_tokens
        self._most_histories: Final = history_bytes // SuffixIndex.bytes_for(history_tokens)
        if self._most_histories < 1:
            raise ValueError(
                f"history_bytes is {history_bytes}: one tenant's history takes "
                f"{SuffixIndex.bytes_for(history_tokens)}; raise it or lower history_tokens"
            )
        self._prompt_tokens: Final = prompt_tokens
        self._histories: OrderedDict[str, SuffixIndex] = OrderedDict()
        self._requests: dict[str, _Request] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all histories and of the requests in flight."""
        held = sum(history.nbytes for history in self._histories.values())
        for request in self._requests.values():
            held += request.index.nbytes
            if request.prediction_index is not None:
                held += request.prediction_index.nbytes
        return held

    def begin(
        self,
        request_id: str,
        tenant: str,
        prompt_ids: Sequence[int],
        prediction_ids: Sequence[int] | None = None,
    ) -> None:
        """Admit a request; again after a preemption it changes nothing."""
        if request_id in self._requests:
            return
        prompt = prompt_ids[-self._prompt_tokens :]
        self._requests[request_id] = _Request(tenant, prompt, prediction_ids)

    def extend(self, request_id: str, tokens: Sequence[int]) -> None:
        """Add tokens that the request emitted; unknown requests are ignored."""
        request = self._requests.get(request_id)
        if request is not None and tokens:
            request.extend(tokens)

    def end(self, request_id: str, *, remember: bool = True) -> None:
        """The request ended: its answer enters its tenant's history, unless it must not be remembered."""
        request = self._requests.pop(request_id, None)
        if request is None or not remember or not request.answer or request.tenant == NOBODY:
            return
        history = self._histories.get(request.tenant)
        if history is None:
            while len(self._histories) >= self._most_histories:
                self._histories.popitem(last=False)
            history = self._histories[request.tenant] = SuffixIndex(self._tokens)
        self._histories.move_to_end(request.tenant)
        text = request.index.text()
        history.extend(text[-(len(request.answer) + _CONTEXT_KEPT) :])
        history.end_text()

    def forget(self, tenant: str) -> None:
        """Drop a tenant's history, and let its requests in flight leave none."""
        self._histories.pop(tenant, None)
        for request in self._requests.values():
            if request.tenant == tenant:
                request.tenant = NOBODY

    def propose(self, request_id: str, first: int | None, most: int) -> list[Candidate]:
        """Continuations of the request's text, at most one per source.

        A source whose longest match does not begin with `first` (the model's first draft token) is searched
        again behind it; that gives a candidate of its own.

        Args:
            request_id: A request in flight; an unknown one has no candidates.
            first: The model's first draft token, if it is known already.
            most: Most draft tokens, at least 1.
        """
        request = self._requests.get(request_id)
        if request is None:
            return []
        context = np.array(request.tail, np.int32)
        behind = None if first is None else np.array([*request.tail[1 - MAX_MATCH :], first], np.int32)
        candidates: list[Candidate] = []
        if request.prediction and request.follows_prediction:
            candidate = _predicted(request, most)
            if candidate is not None:
                candidates.append(candidate)
        sources = (
            (Source.PREDICTION, request.prediction_index if not candidates else None),
            (Source.REQUEST, request.index),
            (Source.HISTORY, self._histories.get(request.tenant)),
        )
        for source, index in sources:
            if index is None:
                continue
            match = index.match(context, most)
            if match is not None:
                candidates.append(_candidate(match, source))
            if (
                first is not None
                and behind is not None
                and most > 1
                and (match is None or match.tokens[0] != first)
            ):
                match = index.match(behind, most - 1)
                if match is not None:
                    candidates.append(_candidate(match, source, first))
        return candidates


def _capacity(tokens: int) -> int:
    """Room for a text and as many tokens again, at least 256."""
    return 1 << max(8, (2 * max(tokens, LONG) - 1).bit_length())


def _candidate(match: Match, source: Source, first: int | None = None) -> Candidate:
    return Candidate(
        tokens=match.tokens if first is None else (first, *match.tokens),
        source=source,
        match_length=match.length,
        count=match.count,
        shares=tuple(vote / rival for vote, rival in zip(match.votes, match.rivals, strict=True)),
        agreement=match.agreement,
        after_first=first is not None,
    )


def _predicted(request: _Request, most: int) -> Candidate | None:
    """What comes next in a prediction that the answer has followed so far."""
    at = len(request.answer)
    tokens = request.prediction[at : at + most]
    if not tokens:
        return None
    return Candidate(tokens, Source.PREDICTION, min(at, MAX_MATCH), 1, (1.0,) * len(tokens), 1.0)
