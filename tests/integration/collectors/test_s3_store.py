"""The tensor store on S3: a real HTTP server that speaks its API, on loopback."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from collectors.features import FeatureMeta
from collectors.orphans import FeatureQuota, collect
from collectors.publisher import Publisher
from collectors.safetensors import TensorData
from collectors.store import ChecksumError, ObjectMissingError, StoreUnavailableError, TensorStore
from tests.integration.collectors.test_messages import trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from collectors.transport import OutgoingRecord

TENSORS = {"x": TensorData("U8", (4,), b"1234")}
META = FeatureMeta(feature_start=0, rows=2, dtype="float32", feature_layers=(1,), hidden_size=4)
FEATURES = {name: TensorData("F32", (2, 4), bytes(32)) for name in ("features", "last_hidden")}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """URL of an S3 server with one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
        fsspec.filesystem("s3").mkdir("bucket")
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(endpoint: str) -> Iterator[TensorStore]:
    """An empty store."""
    assert endpoint
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    made = TensorStore("s3://bucket/some/prefix")
    yield made
    for tenant in ("acme", "other"):
        made.delete_tenant(tenant)


def test_objects_come_back_verified(store: TensorStore, tmp_path: Path) -> None:
    """Claim checks, files, checksums, missing objects and the erasure of a tenant work as on a disk."""
    stored = store.put("acme", "a/b", TENSORS)
    assert stored.uri == "s3://bucket/some/prefix/acme/a/b.safetensors"
    assert len(store.get(stored.uri, stored.sha256)) == stored.bytes
    with pytest.raises(ChecksumError):
        store.get(stored.uri, "0" * 64)
    with pytest.raises(ObjectMissingError):
        store.get(stored.uri.replace("/b.", "/c."), stored.sha256)
    source = tmp_path / "adapter"
    source.write_bytes(bytes(range(256)) * 1000)
    filed = store.put_file("acme", "adapters/1.safetensors", source)
    assert store.fetch(filed.uri, filed.sha256, tmp_path / "copy").read_bytes() == source.read_bytes()
    other = store.put("other", "a", TENSORS)
    store.delete_tenant("acme")
    with pytest.raises(ObjectMissingError):
        store.get(stored.uri, stored.sha256)
    assert store.get(other.uri, other.sha256)


def test_traces_share_objects_and_orphans_go(store: TensorStore) -> None:
    """The publisher's objects lie there once per tenant and batch; quotas and ages are kept."""
    sent: list[OutgoingRecord] = []

    class Log:
        def send_many(self, batch: Sequence[OutgoingRecord]) -> None:
            sent.extend(batch)

        def flush(self, timeout: float) -> None:
            pass

        def close(self) -> None:
            pass

    publisher = Publisher(Log, store, 1 << 20, linger=0.5)  # type: ignore[arg-type]  # what it uses
    for number in range(20):
        publisher.publish_trace(trace(number, ("acme", "other")[number % 2]), FEATURES, META)
    publisher.close()
    assert len(sent) == 20
    found = collect(store, lambda _: FeatureQuota(3600.0, 1 << 30))
    assert (found.objects, found.expired) == (2, 0)
    found = collect(store, lambda _: FeatureQuota(3600.0, 1 << 30), clock=lambda: time.time() + 7200)
    assert (found.objects, found.expired, found.failed) == (0, 2, 0)


@pytest.mark.usefixtures("store")
def test_a_server_that_is_away_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody at the address, and an operation the server refuses, are errors to retry, named."""
    missing = TensorStore("s3://no-such-bucket/prefix")
    with pytest.raises((StoreUnavailableError, ObjectMissingError), match="no-such-bucket"):
        missing.put("acme", "a", TENSORS)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(StoreUnavailableError, match="s3://bucket"):
        TensorStore("s3://bucket/some/prefix").put("acme", "a", TENSORS)
