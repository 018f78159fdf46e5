"""What an endpoint serves."""

from __future__ import annotations

import hashlib
import importlib.resources
import shutil
from typing import TYPE_CHECKING

import pytest

from adaptive.endpoint.identity import ModelDirectoryError, identify
from adaptive.settings import Settings
from adaptive.speculator.config import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def test_a_directory_is_served_under_its_name(target: Path, turbo: Path) -> None:
    """Fingerprints are those of the weight files and of tokenizer.json; paths are absolute."""
    found = identify(Settings(model=str(target), turbo=turbo))
    assert (found.name, found.target, found.turbo) == ("tiny", target.resolve(), turbo.resolve())
    assert found.target_sha256 == sha256(b"target weights")
    assert found.turbo_sha256 == sha256(b"turbo weights")
    assert found.tokenizer_sha256 == sha256(b"tokenizer")
    assert found.speculator.feature_layers == (2, 5, 7)


def test_a_catalogue_name_is_looked_up_in_home(target: Path, turbo: Path, tmp_path: Path) -> None:
    """Where `adaptive models prepare` puts it."""
    home = tmp_path / "home"
    shutil.copytree(target, home / "models" / "tiny-135m")
    found = identify(Settings(home=home, model="tiny-135m", turbo=turbo))
    assert found.name == "tiny-135m"
    assert found.target == (home / "models" / "tiny-135m").resolve()


def test_a_name_that_is_not_prepared_says_how(turbo: Path, tmp_path: Path) -> None:
    """The command to run is in the message."""
    with pytest.raises(ModelDirectoryError, match=r"'adaptive models prepare tiny'.*ADAPTIVE_HOME"):
        identify(Settings(home=tmp_path, model="tiny", turbo=turbo))


@pytest.mark.parametrize("model", ["/no/such/model", "no/such/model"])
def test_a_missing_directory_is_named(turbo: Path, model: str) -> None:
    """A path is never taken for a catalogue name."""
    with pytest.raises(ModelDirectoryError, match=f"{model} does not exist: .*ADAPTIVE_MODEL"):
        identify(Settings(model=model, turbo=turbo))


@pytest.mark.parametrize(
    ("where", "file", "setting"),
    [
        ("target", "model.safetensors", "ADAPTIVE_MODEL"),
        ("target", "tokenizer.json", "ADAPTIVE_MODEL"),
        ("turbo", "model.safetensors", "ADAPTIVE_TURBO"),
    ],
)
def test_an_incomplete_directory_names_file_and_setting(
    target: Path, turbo: Path, where: str, file: str, setting: str
) -> None:
    """Half a download is found before vLLM starts."""
    path = {"target": target, "turbo": turbo}[where] / file
    path.unlink()
    with pytest.raises(ModelDirectoryError, match=f"{path} is missing: {setting}"):
        identify(Settings(model=str(target), turbo=turbo))


def test_a_turbo_without_config_is_named(target: Path, turbo: Path) -> None:
    """The speculator's own error says which file."""
    (turbo / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        identify(Settings(model=str(target), turbo=turbo))


def test_the_shipped_turbo_is_the_default(
    target: Path, turbo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in the deploy package by the target's name; a target without one says how to get one."""

    def files(package: str | ModuleType) -> Path:
        assert package == "deploy"
        return tmp_path / "deploy"

    monkeypatch.setattr(importlib.resources, "files", files)
    with pytest.raises(ModelDirectoryError, match=r"no turbo ships for target 'tiny': .*ADAPTIVE_TURBO"):
        identify(Settings(model=str(target)))
    shutil.copytree(turbo, tmp_path / "deploy" / "turbo" / "tiny")
    assert identify(Settings(model=str(target))).turbo == (tmp_path / "deploy" / "turbo" / "tiny").resolve()
