"""A real `adaptive serve` with fewer slots than tenants, and the controller's part of its log."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import psutil  # type: ignore[import-untyped]  # no stubs
import torch

from adaptive import contracts
from adaptive.contracts import AdapterReference, PolicyDecided, TenantChanged, TenantState
from adaptive.internal_key import internal_key
from adaptive.settings import Settings
from adaptive.speculator.adapter import Adapter, AdapterConfig, AdapterMetadata, save_adapter
from adaptive.speculator.config import SpeculatorConfig
from collectors.open import open_transport
from collectors.store import TensorStore
from tests.bench import result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODEL = "smollm2-135m"
TURBO = result.ROOT / "deploy" / "turbo" / MODEL
RANK = 8
KV_CACHE_BYTES = 1 << 28
START_SECONDS = 240


class SoakService:
    """One endpoint with its engine, and what writes its log."""

    def __init__(self, home: Path, tenants: Sequence[str], slots: int, **settings: str) -> None:
        """Start it; every tenant learns, none shares."""
        self.home = home
        self.tenants = tuple(tenants)
        (home / "models").symlink_to(result.ROOT / ".adaptive" / "models")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        self.settings = Settings(home=home, endpoint_port=port)
        self.log = open_transport(self.settings.resolved_log_url)
        self.store = TensorStore(self.settings.resolved_store_url)
        self.output = home / "serve.log"
        self._versions = dict.fromkeys(tenants, 0)
        self._speculator = SpeculatorConfig.from_directory(TURBO)
        self._sha256 = {
            name: hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
            for name, path in (("target", home / "models" / MODEL), ("turbo", TURBO))
        }
        for tenant in tenants:
            self.account(tenant)
        self._start(
            {
                "ADAPTIVE_HOME": str(home),
                "ADAPTIVE_ENDPOINT_PORT": str(port),
                "ADAPTIVE_DTYPE": "float32",
                "ADAPTIVE_MAX_MODEL_LEN": "1024",
                "ADAPTIVE_MAX_NUM_SEQS": "8",
                "ADAPTIVE_KV_CACHE_GIB": str(KV_CACHE_BYTES / (1 << 30)),
                "ADAPTIVE_SLOTS": str(slots),
                "ADAPTIVE_RANK": str(RANK),
                "ADAPTIVE_SLOT_RESIDENCE_SECONDS": "1",
            }
            | settings
        )

    def _start(self, settings: dict[str, str]) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("ADAPTIVE_")}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "adaptive.cli", "serve"],
                env=plain | settings,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=result.ROOT,
            )

    def wait_ready(self) -> None:
        """Until it serves and knows its accounts."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            text = self.output.read_text(errors="replace")[-5000:]
            assert self.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.2)

    def _ready(self) -> bool:
        headers = {"authorization": f"Bearer {self.tenants[-1]}-key"}
        try:
            return httpx.get(f"{self.url}/v1/models", headers=headers, timeout=10).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.settings.endpoint_port}"

    @property
    def internal_headers(self) -> dict[str, str]:
        """What the internal routes ask for."""
        return {"x-adaptive-internal-key": internal_key(self.settings)}

    def account(self, tenant: str) -> None:
        """Write a tenant's account; its key is `<tenant>-key`."""
        changed = TenantChanged(
            tenant=tenant,
            revision=1,
            state=TenantState.ACTIVE,
            key_hashes=[hashlib.sha256(f"{tenant}-key".encode()).hexdigest()],
            learn=True,
            share=False,
            freeze=False,
            changed_at=time.time(),
        )
        self.log.send(contracts.TOPIC_TENANT_CHANGED, tenant, contracts.encode(changed))

    def swap(self, tenant: str, *, scale: float, weight: float) -> int:
        """Publish a tenant's next version, of random values, as its champion."""
        version = self._versions[tenant] = self._versions[tenant] + 1
        generator = torch.Generator().manual_seed(version)
        adapter = Adapter(AdapterConfig(rank=RANK), self._speculator, generator)
        for name, tensor in adapter.tensors().items():
            if name.endswith(".B"):
                tensor.copy_(scale * torch.randn(tensor.shape, generator=generator) / RANK**0.5)
        path = self.home / "next.safetensors"
        target, turbo = self._sha256["target"], self._sha256["turbo"]
        metadata = AdapterMetadata(tenant, version, RANK, target, turbo, "2026-01-01T00:00:00Z")
        save_adapter(path, adapter.tensors(), metadata)
        stored = self.store.put_file(tenant, f"adapters/{version}.safetensors", path)
        decided = PolicyDecided(
            tenant=tenant,
            policy_version=version,
            champion=AdapterReference(tenant, version, stored.uri, stored.sha256, target, turbo, RANK),
            weight=weight,
            max_lookahead=4,
            control_share=0.1,
            off_share=0.1,
            reason="soak",
            decided_at=time.time(),
        )
        self.log.send(contracts.TOPIC_POLICY_DECIDED, tenant, contracts.encode(decided))
        return version

    def engine(self) -> dict[str, Any]:
        """`/internal/engine`."""
        answer = httpx.get(f"{self.url}/internal/engine", headers=self.internal_headers, timeout=60)
        state: dict[str, Any] = answer.raise_for_status().json()
        return state

    def metrics(self) -> str:
        """`/metrics`."""
        return httpx.get(f"{self.url}/metrics", headers=self.internal_headers, timeout=60).text

    def memory(self) -> int:
        """Bytes that endpoint and engine hold, together."""
        processes = [psutil.Process(self.process.pid)]
        processes += processes[0].children(recursive=True)
        return sum(process.memory_info().rss for process in processes)

    def close(self) -> None:
        """Stop it, whatever it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
