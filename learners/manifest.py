"""What an update used and gave, beside its MLflow run: enough to run it again from the log, anywhere.

Offsets and a seed alone do not determine an adapter. Which requests a replay held then, which of them were
new, what was held out, what served, how many threads added numbers up: all that is state that moves on.
The manifest keeps the decisions themselves.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from adaptive.contracts import AdapterReference, HoldoutScore
from learners.records import UpdatePlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from adaptive.speculator.sequences import TracedSequence
    from learners.records import StoredRequest

MANIFEST: Final = "update.json"
"""File name beside the adapter, and of the run's artifact."""


class ManifestError(Exception):
    """A manifest cannot be read; the message says why."""


class UsedRequest(msgspec.Struct, frozen=True):
    """One request of an update's replay, and where the log holds it."""

    number: int
    """In the ledger of then: the order in which requests were dealt to steps depends on it."""
    request_id: str
    partition: int
    first_offset: int
    last_offset: int
    tokens: int
    """Answer tokens."""
    sha256: str
    """Of everything that training saw of it (`sequence_sha256`)."""


class Environment(msgspec.Struct, frozen=True):
    """What decides in which order numbers are added up."""

    threads: int
    torch: str
    cpu: str
    """Instruction set of torch's CPU kernels."""
    package: str
    """Version of adaptive-speculator."""

    def differences(self, other: Environment) -> list[str]:
        """Fields that differ, as "name: this, not that"."""
        names = self.__struct_fields__
        return [
            f"{name}: {getattr(self, name)}, not {getattr(other, name)}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]


class Manifest(msgspec.Struct, frozen=True):
    """Input and result of one update; fields are only ever added, with a default."""

    plan: UpdatePlan
    training: list[UsedRequest]
    holdout: list[UsedRequest]
    warm_started: bool
    """False where the plan's warm start turned out unusable, and training began as turbo."""
    champion: AdapterReference | None
    """What served when the challenger was judged."""
    champion_weight: float
    lookahead: int
    """Drafts per verify step of the scores."""
    features: str
    """captured or recomputed, as `Settings.features`."""
    environment: Environment
    adapter_sha256: str
    publish: bool
    turbo_score: HoldoutScore
    champion_score: HoldoutScore | None
    challenger_score: HoldoutScore
    manifest_version: int = 1


class Fingerprints:
    """Remembers the fingerprint of every sequence that passes through it."""

    def __init__(self, load: Callable[[int], TracedSequence]) -> None:
        self._load: Final = load
        self._known: Final[dict[int, str]] = {}

    def load(self, number: int) -> TracedSequence:
        """Load a request's sequence, noting what it is."""
        sequence = self._load(number)
        if number not in self._known:
            self._known[number] = sequence_sha256(sequence)
        return sequence

    def of(self, number: int) -> str:
        """Fingerprint of a request; loads it where an interrupted update has not."""
        if number not in self._known:
            self.load(number)
        return self._known[number]


def used(
    numbers: Iterable[int], requests: Mapping[int, StoredRequest], fingerprints: Fingerprints
) -> list[UsedRequest]:
    """Describe requests of the replay by number."""
    return [
        UsedRequest(
            number=number,
            request_id=requests[number].request_id,
            partition=requests[number].partition,
            first_offset=requests[number].first_offset,
            last_offset=requests[number].last_offset,
            tokens=requests[number].tokens,
            sha256=fingerprints.of(number),
        )
        for number in numbers
    ]


def current_environment() -> Environment:
    """This process; call it in the thread that trains, for torch's thread count belongs to a thread."""
    try:
        package = version("adaptive-speculator")
    except PackageNotFoundError:
        package = "unknown"
    return Environment(
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        cpu=torch.backends.cpu.get_cpu_capability(),
        package=package,
    )


def sequence_sha256(sequence: TracedSequence) -> str:
    """sha256 (hex) of a sequence's tokens, bounds, features and hidden states, bit by bit."""
    digest = hashlib.sha256(f"{sequence.answer_start}:{sequence.feature_start}".encode())
    parts = [sequence.token_ids, sequence.features, sequence.last_hidden]
    for tensor in parts + ([] if sequence.rejected is None else [sequence.rejected]):
        digest.update(f"{tensor.dtype}:{list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    partial.replace(path)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        ManifestError: the file is missing or no manifest.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise ManifestError(f"{path} is no manifest of an update ({error})") from error
