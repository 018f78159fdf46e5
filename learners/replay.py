"""A tenant's replay on disk: one safetensors file per request, named by its number in the ledger."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from adaptive.speculator.sequences import TracedSequence

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from learners.records import StoredRequest


class ReplayError(Exception):
    """A stored request cannot be read; `number` is its number in the ledger."""

    def __init__(self, number: int, detail: str) -> None:
        super().__init__(f"replay of request {number} cannot be read: {detail}")
        self.number: Final = number


class Replay:
    """Sequences of every tenant under one directory; which of them exist is the ledger's knowledge."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory

    def save(self, tenant: str, number: int, sequence: TracedSequence) -> None:
        """Store a sequence; readers see all of it or nothing."""
        path = self._path(tenant, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        starts = torch.tensor([sequence.answer_start, sequence.feature_start])
        tensors = {
            "token_ids": sequence.token_ids,
            "starts": starts,
            "features": sequence.features.contiguous(),
            "last_hidden": sequence.last_hidden.contiguous(),
        }
        if sequence.rejected is not None:
            tensors["rejected"] = sequence.rejected
        save_file(tensors, partial)
        partial.replace(path)

    def load(self, tenant: str, number: int) -> TracedSequence:
        """Read a sequence back.

        Raises:
            ReplayError: its file is missing or damaged.
        """
        path = self._path(tenant, number)
        try:
            tensors = load_file(path)
        except (FileNotFoundError, SafetensorError) as error:
            raise ReplayError(number, str(error)) from error
        answer_start, feature_start = tensors["starts"].tolist()
        return TracedSequence(
            tensors["token_ids"],
            answer_start,
            feature_start,
            tensors["features"],
            tensors["last_hidden"],
            tensors.get("rejected"),
        )

    def remove(self, requests: Iterable[StoredRequest]) -> None:
        """Delete the files of requests; those that are gone already are passed over."""
        for request in requests:
            self.discard(request.tenant, request.number)

    def discard(self, tenant: str, number: int) -> None:
        """Delete one request's file if it is there."""
        self._path(tenant, number).unlink(missing_ok=True)

    def size(self, tenant: str, number: int) -> int:
        """Bytes of a request's file; 0 if it is gone."""
        try:
            return self._path(tenant, number).stat().st_size
        except FileNotFoundError:
            return 0

    def forget(self, tenant: str) -> int:
        """Delete every file of a tenant, half-written ones too; returns how many there were."""
        folder = self._folder(tenant)
        count = len(list(folder.iterdir())) if folder.is_dir() else 0
        shutil.rmtree(folder, ignore_errors=not folder.exists())
        return count

    def _path(self, tenant: str, number: int) -> Path:
        return self._folder(tenant) / f"{number}.safetensors"

    def _folder(self, tenant: str) -> Path:
        return self._directory / hashlib.sha256(tenant.encode()).hexdigest()[:16]
