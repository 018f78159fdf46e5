"""Makes a served model directory from a registry package, once: verified, atomic, safe between processes."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog
from filelock import FileLock, Timeout

from adaptive.models.catalogue import ModelEntry, find_entry
from adaptive.models.convert import Converter, convert_gguf
from adaptive.models.errors import ConversionMismatchError, DiskFullError, SourceCorruptError
from adaptive.models.installed import find_data_file
from adaptive.models.manifest import (
    WEIGHTS_NAME,
    Manifest,
    describe_files,
    find_defect,
    hash_file,
    write_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = structlog.get_logger()

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Progress(Protocol):
    """Told what is going on: the stage's name, and bytes done of bytes in all (0 of 0 where unknown)."""

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        """Show it."""
        ...


def _silent(_stage: str, _done: int, _total: int, /) -> None:
    pass


def model_directory(name: str, home: Path) -> Path:
    """Where `prepare` puts a model, whether or not it is there yet."""
    return home / "models" / find_entry(name).name


def prepare(
    name: str, home: Path, progress: Progress = _silent, *, converter: Converter = convert_gguf
) -> Path:
    """Return a verified model directory, making or remaking it when it is missing or damaged.

    Calling it again costs one checksum pass. Two processes may call it at once: one converts, the other
    waits. The directory appears complete or not at all.

    Args:
        name: Catalogue name, e.g. "smollm2-135m".
        home: State directory; the model goes to `home/models/<name>`.
        progress: Called in this thread as the work goes on.
        converter: Writes the served model; replaced in tests.

    Raises:
        UnknownModelError: The name is not in the catalogue.
        PackageMissingError: The package that ships the source, or a conversion tool, is not installed.
        SourceCorruptError: The packaged source has another checksum.
        DiskFullError: Too little space; nothing half-written stays.
        ConversionMismatchError: The tools installed here convert to other weights.
    """
    entry = find_entry(name)
    directory = model_directory(name, home)
    if _find_defect(directory, entry, progress) is None:
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(directory.parent / f".{entry.name}.lock", progress):
        defect = _find_defect(directory, entry, progress)
        if defect is None:
            return directory
        if directory.exists():
            _log.warning("model.remade", model=name, directory=str(directory), defect=defect)
        _make(directory, entry, progress, converter)
    return directory


def _find_defect(directory: Path, entry: ModelEntry, progress: Progress) -> str | None:
    if not directory.is_dir():
        return "the directory is missing"
    total = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    return find_defect(directory, entry, _Advance("checking the prepared model", total, progress))


def _make(directory: Path, entry: ModelEntry, progress: Progress, converter: Converter) -> None:
    """Convert into a sibling directory and rename it; the caller holds the lock."""
    for stale in directory.parent.glob(f".{entry.name}.tmp-*"):
        shutil.rmtree(stale)  # left by a process that was killed: the lock is ours, so nobody writes there
    source = _verified_source(entry, progress)
    free = shutil.disk_usage(directory.parent).free
    if free < entry.disk_bytes:
        raise _disk_full(entry, directory.parent, free)
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}.tmp-", dir=directory.parent) as scratch:
        staged = Path(scratch) / "model"
        with _disk_full_named(entry, directory.parent):
            staged.mkdir()
            progress("converting", 0, 0)
            tool_versions = converter(source, staged)
            total = sum(path.stat().st_size for path in staged.iterdir())
            files = describe_files(staged, _Advance("verifying the conversion", total, progress))
            converted = files[WEIGHTS_NAME].sha256
            if converted != entry.target_sha256:
                tools = ", ".join(f"{tool} {version}" for tool, version in sorted(tool_versions.items()))
                raise ConversionMismatchError(
                    f"{entry.name}: {WEIGHTS_NAME} was converted to sha256 {converted}, but the shipped "
                    f"turbo and adapters belong to {entry.target_sha256}; the conversion ran with {tools}: "
                    "install the locked versions with: make install"
                )
            write_manifest(
                staged,
                Manifest(
                    model=entry.name,
                    distribution=entry.distribution,
                    distribution_version=entry.version,
                    source_file=entry.source_file,
                    source_sha256=entry.source_sha256,
                    files=files,
                    tool_versions=tool_versions,
                ),
            )
        if directory.exists():
            # rename(2) does not replace a directory that has entries: the damaged one goes into the scratch.
            directory.rename(Path(scratch) / "damaged")
        staged.rename(directory)
    _log.info("model.prepared", model=entry.name, directory=str(directory), sha256=converted)


def _verified_source(entry: ModelEntry, progress: Progress) -> Path:
    source = find_data_file(entry.distribution, entry.source_file, entry.install_command)
    found = hash_file(source, _Advance("checking the source", source.stat().st_size, progress))
    if found != entry.source_sha256:
        raise SourceCorruptError(
            f"{source} has sha256 {found}, expected {entry.source_sha256} "
            f"({entry.distribution} {entry.version}): the file is damaged or of another version; "
            f"reinstall it with: {entry.install_command} --force-reinstall"
        )
    return source


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares this model", 0, 0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _disk_full_named(entry: ModelEntry, where: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # safetensors writes in Rust and passes the errno on in its message only.
        code = error.errno if isinstance(error, OSError) else None
        if code in _FULL or any(f"os error {full}" in str(error) for full in _FULL):
            raise _disk_full(entry, where, shutil.disk_usage(where).free) from error
        raise


def _disk_full(entry: ModelEntry, where: Path, free: int) -> DiskFullError:
    return DiskFullError(
        f"{entry.name} needs {entry.disk_bytes / 1e6:.0f} MB in {os.fspath(where)}, where "
        f"{free / 1e6:.0f} MB are free: make room there or point ADAPTIVE_HOME to another file system"
    )


class _Advance:
    """Adds up bytes for a progress callback."""

    def __init__(self, stage: str, total: int, progress: Progress) -> None:
        self._stage, self._total, self._progress, self._done = stage, total, progress, 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._progress(self._stage, self._done, self._total)
