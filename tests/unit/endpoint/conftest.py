"""Model directories of a few bytes, and an agent's surroundings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from adaptive.endpoint import agent as agent_module
from adaptive.endpoint import placement
from adaptive.speculator.config import SpeculatorConfig
from tests.unit.endpoint.service import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target: weights and tokenizer as far as their fingerprints go."""
    directory = tmp_path / "targets" / "tiny"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"target weights")
    (directory / "tokenizer.json").write_bytes(b"tokenizer")
    return directory


@pytest.fixture
def turbo(tmp_path: Path) -> Path:
    """A turbo for it."""
    directory = tmp_path / "turbos" / "tiny"
    directory.mkdir(parents=True)
    config = SpeculatorConfig(8, 12, 2, 1, 4, 24, 17, 1e-5, 10000.0, 128, 8, (2, 5, 7))
    (directory / "config.json").write_text(json.dumps(config.to_checkpoint_config()))
    (directory / "model.safetensors").write_bytes(b"turbo weights")
    return directory


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A home with an empty log; its agent runs rounds as fast as it can."""
    monkeypatch.setattr(agent_module, "_POLL_SECONDS", 0.005)
    monkeypatch.setattr(placement, "RETRY_SECONDS", 0.02)
    made = Stack(tmp_path)
    yield made
    made.stop()
    made.log.close()
