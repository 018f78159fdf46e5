"""The manifest of a prepared model: what it was made from, what it consists of, and whether it still does."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from adaptive.models.catalogue import ModelEntry

MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "model.safetensors"

_CHUNK_BYTES = 1 << 22


class FileRecord(msgspec.Struct, frozen=True):
    """Size in bytes and checksum of one file."""

    sha256: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """Contents of `manifest.json`; `files` covers everything in the directory except the manifest itself."""

    model: str
    distribution: str
    distribution_version: str
    source_file: str
    source_sha256: str
    files: dict[str, FileRecord]
    tool_versions: dict[str, str]
    format: str = "adaptive-model-1"


def hash_file(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file in lower-case hex; `advance` is called with the number of bytes just read."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            if advance is not None:
                advance(len(chunk))
    return digest.hexdigest()


def describe_files(directory: Path, advance: Callable[[int], None] | None = None) -> dict[str, FileRecord]:
    """Checksums and sizes of the regular files of a directory, without the manifest."""
    return {
        path.name: FileRecord(sha256=hash_file(path, advance), size=path.stat().st_size)
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name != MANIFEST_NAME
    }


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, last of all files."""
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (directory / MANIFEST_NAME).write_bytes(encoded + b"\n")


def find_defect(
    directory: Path, entry: ModelEntry, advance: Callable[[int], None] | None = None
) -> str | None:
    """Why the directory is not a valid preparation of `entry`; None if it is one.

    Sizes are compared before checksums, so that a truncated file is found without reading the others.
    """
    try:
        manifest = msgspec.json.decode((directory / MANIFEST_NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return f"{MANIFEST_NAME} is missing"
    except (msgspec.DecodeError, OSError) as error:
        return f"{MANIFEST_NAME} is unreadable: {error}"
    if manifest.source_sha256 != entry.source_sha256:
        return "it was made from another source file"
    weights = manifest.files.get(WEIGHTS_NAME)
    if weights is None or weights.sha256 != entry.target_sha256:
        return f"{WEIGHTS_NAME} is not the one the catalogue names"
    return _find_file_defect(directory, manifest.files, advance)


def _find_file_defect(
    directory: Path, files: dict[str, FileRecord], advance: Callable[[int], None] | None
) -> str | None:
    for name, record in files.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != record.size:
            return f"{name} has {path.stat().st_size} bytes instead of {record.size}"
    for name, record in files.items():
        if hash_file(directory / name, advance) != record.sha256:
            return f"{name} has a wrong checksum"
    return None
