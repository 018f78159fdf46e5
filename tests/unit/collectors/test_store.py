"""The tensor store: claim checks, names, faults."""

from __future__ import annotations

import errno
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from collectors.safetensors import DTYPE_BYTES, TensorData, serialize
from collectors.store import (
    ChecksumError,
    InvalidNameError,
    ObjectMissingError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    TensorStore,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TENSORS = {"features": TensorData("BF16", (2, 3), bytes(range(12)))}


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TensorStore:
    """An empty store, on a disk and on another fsspec file system."""
    return TensorStore(f"{request.param}://{tmp_path}/store")


@pytest.fixture
def local(tmp_path: Path) -> TensorStore:
    """An empty store on a disk."""
    return TensorStore(f"file://{tmp_path}/store")


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, TensorData]:
    """Any mapping of tensors."""
    drawn = {}
    for name in draw(st.sets(st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"))):
        dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        count = DTYPE_BYTES[dtype]
        for length in shape:
            count *= length
        drawn[name] = TensorData(dtype, shape, draw(st.binary(min_size=count, max_size=count)))
    return drawn


@given(tensors())
def test_what_is_written_is_safetensors(given_tensors: dict[str, TensorData]) -> None:
    """The reference implementation reads every tensor back, and its data lie aligned."""
    data = b"".join(serialize(given_tensors))
    read = {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in _read(data)
    }
    assert read == {name: (t.dtype, t.shape, b"".join(t.parts)) for name, t in given_tensors.items()}
    length = int.from_bytes(data[:8], "little")
    for entry in json.loads(data[8 : 8 + length]).values():
        assert (8 + length + entry["data_offsets"][0]) % DTYPE_BYTES[entry["dtype"]] == 0


def _read(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    deserialize: Any = safetensors.deserialize
    return list(deserialize(data))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorData("BF16", (2, 2), b"1234567"), r"'x': 7 bytes, but BF16 of shape \(2, 2\) takes 8"),
        (TensorData("bfloat16", (1,), b"12"), "'x': dtype 'bfloat16' is none of"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(store: TensorStore, tensor: TensorData, message: str) -> None:
    """Bytes, dtype and shape must agree; the error names the tensor."""
    with pytest.raises(ValueError, match=message):
        store.put("acme", "a", {"x": tensor})


def test_an_object_comes_back_verified(store: TensorStore) -> None:
    """The claim check says where, what and how much."""
    stored = store.put("acme", "traces/ab", TENSORS)
    data = store.get(stored.uri, stored.sha256)
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (stored.sha256, stored.bytes)
    assert data == b"".join(serialize(TENSORS))
    assert stored.uri == f"{store.url}/acme/traces/ab.safetensors"


def test_a_memoryview_of_any_shape_is_stored(store: TensorStore) -> None:
    """Buffers are taken as they are, without a copy by the caller."""
    floats: Any = memoryview(bytearray(24)).cast("f", (2, 3))
    stored = store.put("acme", "a", {"x": TensorData("F32", (2, 3), floats)})
    assert stored.bytes == len(store.get(stored.uri, stored.sha256))


def test_replacing_an_object_does_not_disturb_a_reader(local: TensorStore) -> None:
    """Who has the old object open reads it to its end."""
    stored = local.put("acme", "a", TENSORS)
    with Path(stored.uri.removeprefix("file://")).open("rb", buffering=0) as reader:
        start = reader.read(10)
        again = local.put("acme", "a", {"x": TensorData("U8", (4,), b"1234")})
        assert start + reader.read() == b"".join(serialize(TENSORS))
    assert again.uri == stored.uri
    assert local.get(again.uri, again.sha256)


def test_a_file_is_stored_and_fetched(store: TensorStore, tmp_path: Path) -> None:
    """Adapters travel as files; a file that is there already is kept, a damaged one replaced."""
    source = tmp_path / "adapter"
    source.write_bytes(bytes(range(256)) * 9000)
    stored = store.put_file("acme", "adapters/1.safetensors", source)
    assert stored.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert stored.bytes == 256 * 9000
    destination = tmp_path / "deep" / "copy"
    assert store.fetch(stored.uri, stored.sha256, destination) == destination
    assert destination.read_bytes() == source.read_bytes()
    first = destination.stat().st_ino
    store.fetch(stored.uri, stored.sha256, destination)
    assert destination.stat().st_ino == first
    destination.write_bytes(b"damaged")
    store.fetch(stored.uri, stored.sha256, destination)
    assert destination.read_bytes() == source.read_bytes()


def test_damage_is_found(local: TensorStore, tmp_path: Path) -> None:
    """A changed, or truncated, object is refused with both checksums, and never lands at the destination."""
    stored = local.put("acme", "a", TENSORS)
    path = Path(stored.uri.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        ChecksumError, match=rf"damaged: its sha256 is \w+, its claim check says {stored.sha256}"
    ):
        local.get(stored.uri, stored.sha256)
    with pytest.raises(ChecksumError):
        local.fetch(stored.uri, stored.sha256, tmp_path / "copy" / "a")
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_missing_object_is_named(store: TensorStore, tmp_path: Path) -> None:
    """The error says which object and where it was looked for."""
    uri = f"{store.url}/acme/none.safetensors"
    for use in (lambda: store.get(uri, ""), lambda: store.fetch(uri, "", tmp_path / "copy")):
        with pytest.raises(ObjectMissingError, match=rf"{uri} is not in the store"):
            use()


@pytest.mark.parametrize("tenant", ["", ".", "..", "a/b", "../a", "a\0", "a b", "-a", "ü", "a" * 129, "a\n"])
def test_tenants_cannot_leave_their_directory(store: TensorStore, tenant: str) -> None:
    """Ids that are no plain names are refused by everything that takes one."""
    with pytest.raises(InvalidNameError, match="is no tenant id"):
        store.put(tenant, "a", TENSORS)
    with pytest.raises(InvalidNameError, match="is no tenant id"):
        store.delete_tenant(tenant)


@given(st.text(max_size=30))
def test_names_stay_in_the_tenants_directory(name: str) -> None:
    """Whatever the name, either it is refused or its URI lies below the tenant's directory."""
    store = TensorStore("memory://names/store")
    try:
        stored = store.put("acme", name, TENSORS)
    except InvalidNameError:
        return
    assert stored.uri.startswith(f"{store.url}/acme/")
    assert not {"", ".", ".."} & set(stored.uri.removeprefix(f"{store.url}/").split("/"))


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "https://example.org/x",
        "{url}/acme/../../secret",
        "{url}",
        "{url}/acme",
        "",
        "{url}x/a/b",
    ],
)
def test_uris_outside_the_store_are_refused(store: TensorStore, uri: str, tmp_path: Path) -> None:
    """A message cannot make a reader open something else."""
    uri = uri.format(url=store.url)
    for use in (lambda: store.get(uri, ""), lambda: store.fetch(uri, "", tmp_path / "copy")):
        with pytest.raises(InvalidNameError):
            use()


def test_deleting_a_tenant_leaves_the_others(store: TensorStore) -> None:
    """All objects of the tenant are gone, and only those; twice is no error."""
    mine = [store.put("acme", name, TENSORS) for name in ("a", "traces/b")]
    other = store.put("acme2", "a", TENSORS)
    for _ in range(2):
        store.delete_tenant("acme")
    for stored in mine:
        with pytest.raises(ObjectMissingError):
            store.get(stored.uri, stored.sha256)
    assert store.get(other.uri, other.sha256)


def test_a_store_that_is_full_says_so(
    local: TensorStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC in mid-write: a clear error, nothing half-written, and the object from before is whole."""
    before = local.put("acme", "a", TENSORS)

    def full(file: Any, parts: Iterator[bytes]) -> None:
        file.write(next(iter(parts)))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("collectors.store._write_all", full)
    with pytest.raises(StoreFullError, match=r"no space left in .*store for acme/a\.safetensors: free space"):
        local.put("acme", "a", {"x": TensorData("U8", (4,), b"1234")})
    assert local.get(before.uri, before.sha256) == b"".join(serialize(TENSORS))
    assert [path.name for path in (tmp_path / "store" / "acme").iterdir()] == ["a.safetensors"]


def test_a_store_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    """A file in the place of the store's directory is an outage to retry, named."""
    (tmp_path / "store").touch()
    with pytest.raises(StoreUnavailableError, match="check that it is reachable and writable"):
        TensorStore(f"file://{tmp_path}/store").put("acme", "a", TENSORS)


@pytest.mark.parametrize("url", ["nothing://x", "s3://bucket/prefix"])
def test_an_unknown_kind_of_store_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting, the URL and what to install."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(StoreError, match=rf"store_url '{url}' cannot be used.*s3fs"):
        TensorStore(url)


def test_the_same_place_has_the_same_uri(tmp_path: Path) -> None:
    """Processes that write file:///x and /x/ mean the same objects."""
    stored = TensorStore(f"{tmp_path}/store/").put("acme", "a", TENSORS)
    assert TensorStore(f"file://{tmp_path}/store").get(stored.uri, stored.sha256)
