"""The import packages at the top level are ours (ADR 1)."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("adaptive", "collectors", "learners", "controller", "deploy")


@pytest.mark.parametrize("name", PACKAGES)
def test_package_resolves_to_this_repository(name: str) -> None:
    """Importing a top-level package gives this repository's code, whatever else is installed."""
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve().is_relative_to(ROOT)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_colliding_distribution_is_installed(name: str) -> None:
    """No other distribution provides one of our package names."""
    providers = importlib.metadata.packages_distributions().get(name, [])
    assert set(providers) <= {"adaptive-speculator"}
