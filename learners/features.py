"""From the segments of one request to a sequence to train on, with features by claim check or recomputed."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from adaptive.speculator.sequences import TracedSequence
from collectors.store import ChecksumError, InvalidNameError, ObjectMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from adaptive.contracts import FeatureReference, TraceRecord

    Recompute = Callable[[Tensor], tuple[Tensor, Tensor]]


_KEPT_BYTES: Final = 64 << 20


class FeatureStore(Protocol):
    """Where feature objects lie."""

    def get(self, uri: str, sha256: str) -> bytes:
        """Return an object's bytes, verified."""


class LeftOutError(Exception):
    """A request cannot be trained on; `reason` is what the ledger counts."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Final = reason


class Assembler:
    """Builds sequences for one drafter.

    Args:
        store: Where feature objects lie.
        feature_layers: Layers the drafter reads.
        hidden_size: Of the target.
        recompute: Runs the target over a request whose features are absent or damaged; None: it is left out.
    """

    def __init__(
        self,
        store: FeatureStore,
        feature_layers: tuple[int, ...],
        hidden_size: int,
        recompute: Recompute | None,
    ) -> None:
        self._store: Final = store
        self._layers: Final = feature_layers
        self._hidden: Final = hidden_size
        self._recompute: Final = recompute
        self._objects: Final = _Objects(store)
        self.recomputed: Final[Counter[str]] = Counter()
        """Requests whose features were computed again, by what was wrong with the captured ones."""

    def release(self) -> None:
        """Let go of the objects kept for the next request."""
        self._objects.clear()

    def assemble(self, records: Sequence[TraceRecord]) -> TracedSequence:
        """Join the segments of a request (all of them, in order).

        Raises:
            LeftOutError: it has no answer to learn from, or its features are missing, damaged or of other
                layers.
            StoreError: the store is away for now; try again.
        """
        token_ids = tokens_of(records)
        answer_start = records[0].prompt_length
        if len(token_ids) - answer_start < 2:
            raise LeftOutError("no_answer", f"{len(token_ids) - answer_start} answer tokens")
        try:
            feature_start, features, last_hidden = self._captured(records)
        except LeftOutError as error:
            if self._recompute is None:
                raise
            self.recomputed[error.reason] += 1
            features, last_hidden = self._recompute(token_ids)
            feature_start = 0
        rejected = rejected_in(records)
        return _fit(token_ids, answer_start, feature_start, features, last_hidden, rejected)

    def _captured(self, records: Sequence[TraceRecord]) -> tuple[int, Tensor, Tensor]:
        """First position and rows of the captured features."""
        start: int | None = None
        end = 0
        features, last_hidden = [], []
        for record in records:
            reference = record.features
            if reference is None:
                raise LeftOutError(
                    "missing_features", f"trace {record.trace_id} was recorded without features"
                )
            if reference.feature_layers != self._layers or reference.hidden_size != self._hidden:
                raise LeftOutError(
                    "mismatched_features", f"layers {reference.feature_layers}, not {self._layers}"
                )
            if start is None:
                start = end = reference.feature_start
            if reference.feature_start != end:
                raise LeftOutError(
                    "missing_features", f"positions {end} to {reference.feature_start} are missing"
                )
            rows, hidden = self._read(reference)
            features.append(rows)
            last_hidden.append(hidden)
            end += reference.rows
        assert start is not None
        return start, torch.cat(features), torch.cat(last_hidden)

    def _read(self, reference: FeatureReference) -> tuple[Tensor, Tensor]:
        try:
            tensors = self._objects.load(reference.uri, reference.sha256)
        except (ObjectMissingError, InvalidNameError) as error:
            raise LeftOutError("missing_features", str(error)) from error
        except (ChecksumError, SafetensorError) as error:
            raise LeftOutError("corrupt_features", str(error)) from error
        first, end = reference.first_row, reference.first_row + reference.rows
        held = reference.object_rows or reference.rows
        if not 0 <= first < end <= held:
            raise LeftOutError("corrupt_features", f"{reference.uri}: rows {first} to {end} of {held}")
        found = []
        for name, width in (("features", len(self._layers) * self._hidden), ("last_hidden", self._hidden)):
            tensor = tensors.get(name)
            if tensor is None or tuple(tensor.shape) != (held, width):
                raise LeftOutError("corrupt_features", f"{reference.uri}: {name} is not [{held}, {width}]")
            rows = tensor[first:end]
            if not bool(torch.isfinite(rows).all()):
                raise LeftOutError("corrupt_features", f"{reference.uri}: {name} is not finite")
            found.append(rows)
        return found[0], found[1]


class _Objects:
    """Verified objects, the newest few kept: neighbours in a tenant's queue share them."""

    def __init__(self, store: FeatureStore) -> None:
        self._store: Final = store
        self._kept: Final[OrderedDict[tuple[str, str], dict[str, Tensor]]] = OrderedDict()

    def load(self, uri: str, sha256: str) -> dict[str, Tensor]:
        """The object's tensors; errors as the store's `get`, and SafetensorError."""
        key = uri, sha256
        tensors = self._kept.get(key)
        if tensors is None:
            tensors = self._kept[key] = load(self._store.get(uri, sha256))
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        return tensors

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()


def _size(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def tokens_of(records: Sequence[TraceRecord]) -> Tensor:
    """Prompt and answer of a request: int64 [T]."""
    ids = list(records[0].prompt_ids)
    for record in records:
        ids.extend(record.output_ids)
    return torch.tensor(ids, dtype=torch.int64)


def rejected_in(records: Sequence[TraceRecord]) -> Tensor:
    """Bool [T]: tokens of a request that stand where a draft was rejected."""
    at = len(records[0].prompt_ids)
    flags = torch.zeros(at + sum(len(record.output_ids) for record in records), dtype=torch.bool)
    for record in records:
        for step in record.steps:
            place = step.output_offset + step.accepted
            if step.accepted < len(step.drafted) and place < len(record.output_ids):
                flags[at + place] = True
        at += len(record.output_ids)
    return flags


def digest_of(sequence: TracedSequence) -> str:
    """sha256 (hex) of a sequence's token ids: equal for equal text."""
    return hashlib.sha256(sequence.token_ids.numpy().tobytes()).hexdigest()


def _fit(
    token_ids: Tensor,
    answer_start: int,
    feature_start: int,
    features: Tensor,
    last_hidden: Tensor,
    rejected: Tensor,
) -> TracedSequence:
    """Align tokens and rows.

    The last token of a request is sampled and never fed to the target, so the last position usually has no
    row; a TracedSequence has one there that nothing reads, so zeros stand in. Where more rows are missing at
    the end, the text is cut to what they describe.
    """
    known = feature_start + len(features)
    token_ids = token_ids[: known + 1]
    rows = len(token_ids) - feature_start
    features, last_hidden = (
        torch.cat([part[:rows], part.new_zeros(rows - len(part[:rows]), part.shape[1])])
        for part in (features, last_hidden)
    )
    if answer_start > len(token_ids):
        raise LeftOutError("no_answer", "the features end before the answer begins")
    sequence = TracedSequence(
        token_ids, answer_start, feature_start, features, last_hidden, rejected[: len(token_ids)]
    )
    if not sequence.queries:
        raise LeftOutError("no_answer", "the answer is too short to draft in")
    return sequence
