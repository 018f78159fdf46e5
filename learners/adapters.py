"""Adapter files as the learner reads and writes them."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from adaptive.speculator.adapter import AdapterError, AdapterMetadata, load_adapter, save_adapter
from collectors.store import ChecksumError, InvalidNameError, ObjectMissingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from adaptive.contracts import AdapterReference
    from adaptive.speculator.config import SpeculatorConfig
    from learners.records import UpdatePlan

_log = structlog.get_logger(__name__)


class AdapterSource(Protocol):
    """Where published adapters lie."""

    def fetch(self, uri: str, sha256: str, destination: Path) -> Path:
        """Copy an object to a local file, verified."""


class Champions:
    """Reads the adapters that serve, keeping a local copy of each."""

    def __init__(
        self,
        source: AdapterSource,
        directory: Path,
        config: SpeculatorConfig,
        target_sha256: str,
        turbo_sha256: str,
    ) -> None:
        self._source: Final = source
        self._directory: Final = directory
        self._config: Final = config
        self._target_sha256: Final = target_sha256
        self._turbo_sha256: Final = turbo_sha256

    def load(self, reference: AdapterReference | None) -> dict[str, Tensor] | None:
        """Tensors of the adapter that serves; None where turbo serves, or the adapter is unusable.

        Raises:
            StoreUnavailableError: the store is away for now; try again.
        """
        if reference is None:
            return None
        path = self._directory / f"{reference.sha256}.safetensors"
        try:
            self._source.fetch(reference.uri, reference.sha256, path)
            tensors, _ = load_adapter(
                path, self._config, target_sha256=self._target_sha256, turbo_sha256=self._turbo_sha256
            )
        except (AdapterError, ObjectMissingError, ChecksumError, InvalidNameError) as error:
            _log.warning(
                "champion unusable, turbo stands in",
                tenant=reference.tenant,
                version=reference.version,
                error=str(error),
            )
            return None
        return tensors


def write_challenger(path: Path, tensors: Mapping[str, Tensor], plan: UpdatePlan) -> str:
    """Write a challenger's file; equal plans and tensors give equal bytes. Returns its sha256 (hex)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = dt.datetime.fromtimestamp(plan.traces_until, dt.UTC)
    metadata = AdapterMetadata(
        tenant=plan.tenant,
        version=plan.version,
        rank=plan.rank,
        target_sha256=plan.target_sha256,
        turbo_sha256=plan.turbo_sha256,
        created_at=until.isoformat(timespec="seconds"),
    )
    save_adapter(path, tensors, metadata)
    data = _canonical(path.read_bytes())
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
    return hashlib.sha256(data).hexdigest()


def _canonical(data: bytes) -> bytes:
    """Sort the header of a safetensors file: the library orders metadata differently in every process."""
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
