"""One engine for all engine tests; starting it takes most of their time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adaptive.models import prepare
from adaptive.settings import Settings
from tests.integration.engine.harness import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def target() -> Path:
    """The demo target, prepared once per checkout."""
    return prepare("smollm2-135m", ROOT / ".adaptive")


@pytest.fixture(scope="session")
def engine(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A float32 engine with the plugin and the shipped turbo."""
    turbo = Settings().turbo or ROOT / "deploy" / "turbo" / "smollm2-135m"
    engine = Engine(target, turbo, tmp_path_factory.mktemp("engine"))
    yield engine
    engine.llm.llm_engine.engine_core.shutdown()
