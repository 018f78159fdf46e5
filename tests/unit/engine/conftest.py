"""A tiny drafter's shape, adapters for it and files that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest
import torch

from adaptive.speculator.adapter import Adapter, AdapterConfig, AdapterMetadata, save_adapter
from adaptive.speculator.config import SpeculatorConfig

if TYPE_CHECKING:
    from pathlib import Path

RANK = 3
TARGET = "a" * 64
TURBO = "b" * 64


@pytest.fixture
def speculator() -> SpeculatorConfig:
    """A head of 8 hidden units."""
    return SpeculatorConfig(
        hidden_size=8,
        intermediate_size=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        vocab_size=24,
        draft_vocab_size=17,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=128,
        target_hidden_size=8,
        feature_layers=(1, 2, 3),
    )


class AdapterFiles(Protocol):
    """Writes adapter files."""

    def __call__(
        self,
        tenant: str = "acme",
        version: int = 1,
        *,
        rank: int = RANK,
        target: str = TARGET,
        turbo: str = TURBO,
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> Path:
        """Write one and return its path."""


@pytest.fixture
def adapter_file(tmp_path: Path, speculator: SpeculatorConfig) -> AdapterFiles:
    """A writer of adapter files, by default valid ones of rank 3 whose values count up with the version."""

    def write(
        tenant: str = "acme",
        version: int = 1,
        *,
        rank: int = RANK,
        target: str = TARGET,
        turbo: str = TURBO,
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> Path:
        if tensors is None:
            fresh = Adapter(AdapterConfig(rank=rank), speculator).tensors()
            tensors = {name: torch.full_like(tensor, float(version)) for name, tensor in fresh.items()}
        path = tmp_path / f"{tenant}-{version}.safetensors"
        save_adapter(
            path, tensors, AdapterMetadata(tenant, version, rank, target, turbo, "2026-01-01T00:00:00+00:00")
        )
        return path

    return write
