"""Loads adapter files in the background, so that a commit between two steps only copies tensors."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive.speculator.adapter import AdapterError, load_adapter

if TYPE_CHECKING:
    import torch

    from adaptive.speculator.config import SpeculatorConfig


class StagedAdapters:
    """Adapters read, checked and waiting for their commit."""

    def __init__(
        self, speculator: SpeculatorConfig, rank: int, target_sha256: str, turbo_sha256: str
    ) -> None:
        self._speculator = speculator
        self._rank = rank
        self._target_sha256 = target_sha256
        self._turbo_sha256 = turbo_sha256
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="adaptive-stage")
        self._staged: dict[tuple[str, int], Future[dict[str, torch.Tensor]]] = {}

    def stage(self, tenant: str, version: int, path: str) -> None:
        """Start loading; a tenant's older staged versions are dropped."""
        with self._lock:
            for key in [key for key in self._staged if key[0] == tenant]:
                self._staged.pop(key).cancel()
            self._staged[tenant, version] = self._pool.submit(self._load, tenant, version, Path(path))

    def forget(self, tenant: str) -> int:
        """Drop whatever is staged for a tenant; returns how many versions that was."""
        with self._lock:
            gone = [key for key in self._staged if key[0] == tenant]
            for key in gone:
                self._staged.pop(key).cancel()
        return len(gone)

    def state(self, tenant: str, version: int) -> tuple[str, str]:
        """("absent" | "loading" | "ready" | "refused", why it was refused)."""
        future = self._staged.get((tenant, version))
        if future is None:
            return "absent", ""
        if not future.done():
            return "loading", ""
        error = future.exception()
        return ("refused", str(error)) if error is not None else ("ready", "")

    def require(self, tenant: str, version: int) -> None:
        """Check that a staged adapter can be taken.

        Raises:
            AdapterError: it was never staged, is still loading, or was refused.
        """
        state, why = self.state(tenant, version)
        if state != "ready":
            raise AdapterError(
                f"adapter {tenant}@{version} is {state}{': ' + why if why else ''}; stage a valid file first"
            )

    def take(self, tenant: str, version: int) -> dict[str, torch.Tensor]:
        """Hand over a staged adapter's tensors.

        Raises:
            AdapterError: it was never staged, is still loading, or was refused.
        """
        self.require(tenant, version)
        with self._lock:
            return self._staged.pop((tenant, version)).result()

    def _load(self, tenant: str, version: int, path: Path) -> dict[str, torch.Tensor]:
        tensors, metadata = load_adapter(
            path, self._speculator, target_sha256=self._target_sha256, turbo_sha256=self._turbo_sha256
        )
        if (metadata.tenant, metadata.version) != (tenant, version):
            raise AdapterError(
                f"{path.name} holds {metadata.tenant}@{metadata.version}, not {tenant}@{version}: publish "
                "the version again under its own name"
            )
        if metadata.rank != self._rank:
            raise AdapterError(
                f"{path.name}: rank is {metadata.rank}, this engine holds rank {self._rank}: train with "
                "ADAPTIVE_RANK equal to the engine's"
            )
        return tensors
