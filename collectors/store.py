"""Tensors and files too large for the log, kept by claim check: a URI, a checksum and a size."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import fsspec
import msgspec

from collectors.safetensors import serialize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from collectors.safetensors import TensorData

_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=@-]{0,199}")
_CHUNK: Final = 1 << 20


class StoredObject(msgspec.Struct, frozen=True):
    """Claim check of a stored object."""

    uri: str
    sha256: str
    bytes: int


class ObjectInfo(msgspec.Struct, frozen=True):
    """A stored object as a listing shows it; leftovers of interrupted writes are listed too."""

    uri: str
    bytes: int
    modified: float
    """Unix seconds."""


class StoreError(Exception):
    """The tensor store refused an operation; trying again does not help unless something is changed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached or written at the moment: retry."""


class StoreFullError(StoreUnavailableError):
    """No space is left; nothing half-written stays."""


class ObjectMissingError(StoreError):
    """The object is not in the store."""


class ChecksumError(StoreError):
    """The object's bytes are not those that were stored."""


class InvalidNameError(StoreError, ValueError):
    """A tenant id, object name or URI that would leave its place in the store."""


class TensorStore:
    """Objects of every tenant under one fsspec URL, each in its tenant's directory.

    Args:
        url: `file:///path`, `s3://bucket/prefix` or any other fsspec URL.

    Raises:
        StoreError: no fsspec driver for the URL is installed.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"store_url {url!r} cannot be used ({error}): use file:///path, or install the fsspec driver "
                "of that scheme (s3:// needs s3fs)"
            ) from error
        self._root: Final[str] = root.rstrip("/")
        self.url: Final[str] = self._files.unstrip_protocol(self._root)
        protocols = self._files.protocol
        self._local: Final = "file" in ((protocols,) if isinstance(protocols, str) else protocols)

    def put(self, tenant: str, name: str, tensors: Mapping[str, TensorData]) -> StoredObject:
        """Store tensors as one safetensors object, whole or not at all; an object of that name is replaced.

        Args:
            tenant: Tenant id.
            name: Object name; may have directories, the suffix is added.
            tensors: Tensors by name.

        Raises:
            InvalidNameError: `tenant` or `name` is not a plain name.
            StoreUnavailableError: the store is away, or full (StoreFullError).
            ValueError: a tensor's bytes do not fit its dtype and shape.
        """
        return self._write(tenant, name + ".safetensors", serialize(tensors), durable=False)

    def put_file(self, tenant: str, name: str, path: Path) -> StoredObject:
        """Store a file under `name`, whole or not at all, and on disk when this returns; errors as `put`."""
        with path.open("rb") as source:
            return self._write(tenant, name, iter(lambda: source.read(_CHUNK), b""), durable=True)

    def get(self, uri: str, sha256: str) -> bytes:
        """Return an object's bytes.

        Raises:
            ObjectMissingError: it is not there.
            ChecksumError: its bytes changed.
            InvalidNameError: the URI lies outside this store.
            StoreUnavailableError: the store is away.
        """
        path = self._path_of(uri)
        with self._errors(uri):
            data: bytes = self._files.cat_file(path)
        _check(uri, hashlib.sha256(data).hexdigest(), sha256)
        return data

    def fetch(self, uri: str, sha256: str, destination: Path) -> Path:
        """Copy an object to a local file, verified; a file already there with that checksum is kept.

        Returns:
            `destination`.

        Raises:
            As `get`; `destination` is only ever the whole, verified object.
        """
        path = self._path_of(uri)
        if destination.is_file() and _file_sha256(destination) == sha256:
            return destination
        temporary = destination.with_name(f".{uuid.uuid4().hex}")
        try:
            with self._errors(uri, str(destination.parent)):
                destination.parent.mkdir(parents=True, exist_ok=True)
                with self._files.open(path, "rb") as source, temporary.open("wb") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
            _check(uri, _file_sha256(temporary), sha256)
            temporary.replace(destination)
        finally:
            temporary.unlink(missing_ok=True)
        return destination

    def objects(self, directory: str, tenant: str | None = None) -> dict[str, list[ObjectInfo]]:
        """List what lies in a directory of every tenant, or of one; by tenant.

        Raises:
            StoreUnavailableError: the store is away.
        """
        with self._errors(directory):
            self._files.invalidate_cache()
            if tenant is not None:
                tenants = [_tenant(tenant)]
            else:
                found = self._files.ls(self._root, detail=False) if self._files.exists(self._root) else []
                tenants = [name for path in found if _TENANT.fullmatch(name := path.rpartition("/")[2])]
            return {name: found for name in tenants if (found := self._listing(f"{name}/{_name(directory)}"))}

    def delete(self, each: ObjectInfo) -> bool:
        """Remove an object unless it was written again since it was listed; whether it is gone.

        Raises:
            StoreUnavailableError: the store is away, or does not let go of it.
        """
        path = f"{self._root}/{each.uri.removeprefix(self.url + '/')}"
        with self._errors(each.uri):
            try:
                self._files.invalidate_cache()
                if _modified(self._files, path, self._files.info(path)) > each.modified:
                    return False
                self._files.rm_file(path)
            except FileNotFoundError:
                pass
        return True

    def _listing(self, relative: str) -> list[ObjectInfo]:
        entries = self._files.find(f"{self._root}/{relative}", detail=True)
        prefix = f"{self._root}/"
        return [
            ObjectInfo(
                f"{self.url}/{path.removeprefix(prefix)}", entry["size"], _modified(self._files, path, entry)
            )
            for path, entry in entries.items()
        ]

    def remove(self, uri: str) -> bool:
        """Remove the object of a claim check; False if it was not there.

        Raises:
            InvalidNameError: the URI lies outside this store.
            StoreUnavailableError: the store is away, or does not let go of it.
        """
        path = self._path_of(uri)
        with self._errors(uri):
            self._files.invalidate_cache()
            try:
                self._files.rm_file(path)
            except FileNotFoundError:
                return False
        return True

    def tenant_objects(self, tenant: str) -> int:
        """Count the files of a tenant, half-written ones too.

        Raises:
            StoreUnavailableError: the store is away.
        """
        path = f"{self._root}/{_tenant(tenant)}"
        with self._errors(path):
            self._files.invalidate_cache()
            try:
                return len(self._files.find(path))
            except FileNotFoundError:
                return 0

    def delete_tenant(self, tenant: str) -> int:
        """Remove every object of a tenant; returns how many there were.

        Raises:
            StoreUnavailableError: the store is away, or something was written meanwhile: do it again.
        """
        count = self.tenant_objects(tenant)
        path = f"{self._root}/{_tenant(tenant)}"
        with self._errors(path), contextlib.suppress(FileNotFoundError):
            self._files.rm(path, recursive=True)
        return count

    def _write(
        self, tenant: str, name: str, parts: Iterable[bytes | memoryview], *, durable: bool
    ) -> StoredObject:
        relative = f"{_tenant(tenant)}/{_name(name)}"
        digest, size = hashlib.sha256(), 0

        def hashed() -> Iterator[bytes | memoryview]:
            nonlocal size
            for part in parts:
                digest.update(part)
                size += len(part)
                yield part

        with self._errors(relative):
            if self._local:
                _write_file(Path(self._root, relative), hashed(), durable=durable)
            else:
                # Object stores show an upload only once it is whole.
                self._files.pipe_file(f"{self._root}/{relative}", b"".join(hashed()))
        return StoredObject(f"{self.url}/{relative}", digest.hexdigest(), size)

    def _path_of(self, uri: str) -> str:
        relative = uri.removeprefix(self.url + "/")
        tenant, _, name = relative.partition("/")
        if relative == uri:
            raise InvalidNameError(
                f"object {uri!r} lies outside the store {self.url}: give every process the same store_url"
            )
        return f"{self._root}/{_tenant(tenant)}/{_name(name)}"

    @contextlib.contextmanager
    def _errors(self, name: str, written: str | None = None) -> Iterator[None]:
        """Turn errors of the file system into the store's; `written` is where, unless in the store itself."""
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissingError(
                f"object {name} is not in the store {self.url}: it was deleted, or store_url names another"
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(
                    f"no space left in {written or self.url} for {name}: free space or delete old objects"
                ) from error
            raise self._away(name, error) from error
        except (StoreError, ValueError):
            raise
        except Exception as error:
            if self._local:
                raise
            # Clients of object stores have connection errors of their own, which are no OSError.
            raise self._away(name, error) from error

    def _away(self, name: str, error: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store {self.url} failed at {name} ({error}): check that it is reachable and writable"
        )


def _modified(files: Any, path: str, entry: Mapping[str, Any]) -> float:
    """When an object was written; file systems of fsspec name it differently."""
    value = next((entry[key] for key in ("mtime", "LastModified", "created") if entry.get(key)), None)
    if value is None:
        value = files.modified(path)
    return float(value) if isinstance(value, (int, float)) else float(value.timestamp())


def _tenant(tenant: str) -> str:
    if not _TENANT.fullmatch(tenant):
        raise InvalidNameError(
            f"tenant {tenant!r} is no tenant id: 1 to 128 letters, digits, dots, dashes and underscores, the "
            "first a letter or digit"
        )
    return tenant


def _name(name: str) -> str:
    if len(name) > 500 or not all(_SEGMENT.fullmatch(segment) for segment in name.split("/")):
        raise InvalidNameError(
            f"object name {name!r} cannot be used: letters, digits and ._=@- in every part, no leading dot"
        )
    return name


def _check(uri: str, found: str, expected: str) -> None:
    if found != expected:
        raise ChecksumError(
            f"object {uri} is damaged: its sha256 is {found}, its claim check says {expected}: leave it out, "
            "or restore it from a backup"
        )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_file(path: Path, parts: Iterable[bytes | memoryview], *, durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            _write_all(file, parts)
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_all(file: IO[bytes], parts: Iterable[bytes | memoryview]) -> None:
    for part in parts:
        file.write(part)
    file.flush()
