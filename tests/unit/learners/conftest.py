"""A tiny target, turbo and store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from collectors.store import TensorStore
from learners.testing import TinyModels, make_models

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """A tiny target and turbo."""
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    """An empty tensor store."""
    return TensorStore(f"file://{tmp_path}/store")
