"""What an endpoint serves: directories and fingerprints of the target and its turbo."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive.speculator.config import SpeculatorConfig

if TYPE_CHECKING:
    from adaptive.settings import Settings


class ModelDirectoryError(ValueError):
    """A model directory is missing or incomplete; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Fingerprints are SHA-256 of the weight files; the tokenizer's of tokenizer.json."""

    name: str
    target: Path
    turbo: Path
    target_sha256: str
    turbo_sha256: str
    tokenizer_sha256: str
    speculator: SpeculatorConfig


def identify(settings: Settings) -> Identity:
    """Find and fingerprint the target and turbo that the settings name.

    Raises:
        ModelDirectoryError: a directory or file is missing.
    """
    target = Path(settings.model)
    name = target.name
    if not target.is_dir():
        if target.is_absolute() or len(target.parts) > 1:
            raise ModelDirectoryError(
                f"model directory {target} does not exist: pass a directory with config.json and "
                "model.safetensors, or a catalogue name such as smollm2-135m (ADAPTIVE_MODEL)"
            )
        target = settings.home / "models" / settings.model
        if not target.is_dir():
            raise ModelDirectoryError(
                f"model {settings.model!r} is not prepared in {settings.home}: run 'adaptive models prepare "
                f"{settings.model}' with the same ADAPTIVE_HOME"
            )
    turbo = settings.turbo or _shipped_turbo(name)
    return Identity(
        name=name,
        target=target.resolve(),
        turbo=turbo.resolve(),
        target_sha256=_sha256(target / "model.safetensors", "ADAPTIVE_MODEL"),
        turbo_sha256=_sha256(turbo / "model.safetensors", "ADAPTIVE_TURBO"),
        tokenizer_sha256=_sha256(target / "tokenizer.json", "ADAPTIVE_MODEL"),
        speculator=SpeculatorConfig.from_directory(turbo),
    )


def _shipped_turbo(name: str) -> Path:
    turbo = Path(str(importlib.resources.files("deploy") / "turbo" / name))
    if not turbo.is_dir():
        raise ModelDirectoryError(
            f"no turbo ships for target {name!r}: train one (deploy/models/README.md) and set ADAPTIVE_TURBO "
            "to its directory"
        )
    return turbo


def _sha256(path: Path, setting: str) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ModelDirectoryError(
            f"{path} is missing: {setting} must name a complete model directory"
        ) from None
