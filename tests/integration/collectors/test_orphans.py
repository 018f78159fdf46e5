"""Feature objects go when nobody can need them, and never before."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from adaptive import contracts
from adaptive.contracts import TOPIC_TENANT_CHANGED, TOPIC_TRACE_RECORDED, TenantChanged, TenantState
from adaptive.settings import Settings
from collectors.features import FeatureMeta, TraceFeatures, store_features
from collectors.keeper import StoreKeeper
from collectors.open import open_transport
from collectors.orphans import FeatureQuota, collect
from collectors.safetensors import TensorData
from collectors.store import ObjectMissingError, StoreUnavailableError, TensorStore
from tests.integration.collectors.test_messages import trace

if TYPE_CHECKING:
    from adaptive.contracts import FeatureReference
    from collectors.store import ObjectInfo
    from collectors.transport import Transport

HOUR = 3600.0
PLENTY = FeatureQuota(30 * 24 * HOUR, 1 << 30)
META = FeatureMeta(feature_start=0, rows=2, dtype="float32", feature_layers=(1,), hidden_size=4)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TensorStore:
    """An empty store, on a disk and on another fsspec file system."""
    return TensorStore(f"{request.param}://{tmp_path}/store")


def put(store: TensorStore, number: int, tenant: str = "acme") -> FeatureReference:
    """Store the features of one trace."""
    tensors = {name: TensorData("F32", (2, 4), bytes([number]) * 32) for name in ("features", "last_hidden")}
    return store_features(store, [TraceFeatures(tenant, f"request:{number}", 1.0, tensors, META)])[0]


def send(
    transport: Transport, number: int, reference: FeatureReference, topic: str = TOPIC_TRACE_RECORDED
) -> None:
    """Append the record of a trace."""
    record = msgspec.structs.replace(trace(number), features=reference)
    transport.send(topic, "acme", contracts.encode(record))


def is_there(store: TensorStore, reference: FeatureReference) -> bool:
    """Whether an object can still be read."""
    try:
        store.get(reference.uri, reference.sha256)
    except ObjectMissingError:
        return False
    return True


def later(hours: float) -> float:
    """A time to come."""
    return time.time() + hours * HOUR


def test_only_what_no_record_refers_to_goes(store: TensorStore, transport: Transport) -> None:
    """Objects of records and of dead letters stay, orphans go after the grace, other files are left."""
    recorded, dead, orphan = (put(store, number) for number in range(3))
    send(transport, 0, recorded)
    send(transport, 1, dead, TOPIC_TRACE_RECORDED + ".dlq")
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"\xc1 no record")
    adapter = store.put("acme", "adapters/1", {"x": TensorData("U8", (1,), b"1")})
    young = collect(store, lambda _: PLENTY, transport, clock=lambda: later(1))
    assert (young.orphans, young.objects) == (0, 3)
    found = collect(store, lambda _: PLENTY, transport, clock=lambda: later(3))
    assert (found.orphans, found.expired, found.over_quota, found.objects) == (1, 0, 0, 2)
    assert found.bytes_removed == orphan.bytes
    assert [is_there(store, each) for each in (recorded, dead, orphan)] == [True, True, False]
    assert store.get(adapter.uri, adapter.sha256)


def test_an_object_written_again_is_not_taken_away(
    store: TensorStore, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that was held up for hours writes its object again before its record: it stays."""
    reference = put(store, 0)
    real = TensorStore.delete

    def written_meanwhile(self: TensorStore, each: ObjectInfo) -> bool:
        time.sleep(0.02)
        put(self, 0)
        return real(self, each)

    monkeypatch.setattr(TensorStore, "delete", written_meanwhile)
    found = collect(store, lambda _: PLENTY, transport, clock=lambda: later(3))
    assert (found.orphans, found.objects) == (0, 1)
    assert is_there(store, reference)


def test_quotas_are_per_tenant_and_take_the_oldest(store: TensorStore) -> None:
    """Age and bytes are those of the tenant; the newest objects stay."""
    mine = []
    for number in range(4):
        mine.append(put(store, number))
        time.sleep(0.02)
    others = [put(store, number, "other") for number in range(3)]
    quotas = {"acme": FeatureQuota(HOUR, 2 * mine[0].bytes), "other": PLENTY}
    found = collect(store, quotas.__getitem__)
    assert (found.over_quota, found.expired, found.objects) == (2, 0, 5)
    assert [is_there(store, each) for each in mine] == [False, False, True, True]
    found = collect(store, quotas.__getitem__, clock=lambda: later(2))
    assert (found.over_quota, found.expired) == (0, 2)
    assert all(is_there(store, each) for each in others)


def test_leftovers_of_a_killed_writer_go(tmp_path: Path, transport: Transport) -> None:
    """A half-written file that nobody will finish is an orphan too."""
    store = TensorStore(f"file://{tmp_path}/store")
    path = Path(put(store, 0).uri.removeprefix("file://")).with_name(".0123456789abcdef")
    path.write_bytes(b"half")
    os.utime(path, (time.time() - 5 * HOUR, time.time() - 5 * HOUR))
    assert collect(store, lambda _: PLENTY, transport).orphans == 1
    assert not path.exists()


def test_an_object_that_cannot_be_removed_is_counted(
    store: TensorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal costs one object, not the collection."""
    put(store, 0)

    def refuse(_self: TensorStore, each: ObjectInfo) -> bool:
        raise StoreUnavailableError(each.uri)

    monkeypatch.setattr(TensorStore, "delete", refuse)
    found = collect(store, lambda _: FeatureQuota(0.0, 0), clock=lambda: later(1))
    assert (found.failed, found.expired, found.objects, found.bytes_removed) == (1, 0, 1, 0)


def test_an_empty_store_has_nothing_to_collect(store: TensorStore, transport: Transport) -> None:
    """Before the first trace there is not even a directory."""
    assert collect(store, lambda _: PLENTY, transport).objects == 0


def test_the_keeper_follows_accounts_and_outlives_outages(tmp_path: Path) -> None:
    """A tenant's own limits hold before the service's; what keeps the store does not die with the log."""
    settings = Settings(home=tmp_path, feature_retention_days=1.0)
    log = open_transport(settings.resolved_log_url)
    store = TensorStore(settings.resolved_store_url)
    kept, own, orphan = put(store, 0), put(store, 1, "brief"), put(store, 2)
    for number, reference in enumerate((kept, own)):
        send(log, number, reference)
        path = Path(reference.uri.removeprefix("file://"))
        os.utime(path, (time.time() - 5 * HOUR, time.time() - 5 * HOUR))
    path = Path(orphan.uri.removeprefix("file://"))
    os.utime(path, (time.time() - 5 * HOUR, time.time() - 5 * HOUR))
    account = TenantChanged(
        tenant="brief",
        revision=1,
        state=TenantState.ACTIVE,
        key_hashes=[],
        learn=True,
        share=False,
        freeze=False,
        changed_at=0.0,
        retention_seconds=HOUR,
    )
    log.send(TOPIC_TENANT_CHANGED, "brief", contracts.encode(account))
    log.close()
    found = StoreKeeper(settings).round()
    assert (found.expired, found.orphans, found.objects) == (1, 1, 1)
    assert is_there(store, kept)
    away = StoreKeeper(settings.model_copy(update={"log_url": f"sqlite:///{tmp_path}/store/none/log.db"}))
    stop = threading.Event()
    (tmp_path / "store" / "none").touch()
    thread = threading.Thread(target=away.run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
