"""Features into shared objects, with patience for the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import safetensors

from collectors.backlog import Item
from collectors.backoff import Backoff
from collectors.features import FeatureMeta
from collectors.safetensors import TensorData
from collectors.store import StoreFullError, StoreUnavailableError, TensorStore
from collectors.writer import REFRESH_SECONDS, FeatureWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectors.store import StoredObject

ROW_BYTES = 4 * (2 + 1) * 3


class FaultyStore(TensorStore):
    """A store that fails at its n-th write, or while told so."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.away: type[StoreUnavailableError] | None = None
        self.fail_at = -1
        self.writes = 0

    def put(self, tenant: str, name: str, tensors: Mapping[str, TensorData]) -> StoredObject:
        """Store, or fail."""
        self.writes += 1
        if self.away is not None or self.writes == self.fail_at:
            raise (self.away or StoreUnavailableError)("away")
        return super().put(tenant, name, tensors)


class Clock:
    """Time that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    """An empty store."""
    return FaultyStore(f"file://{tmp_path}/store")


@pytest.fixture
def clock() -> Clock:
    """Time zero."""
    return Clock()


@pytest.fixture
def writer(store: FaultyStore, clock: Clock) -> FeatureWriter:
    """Objects take no more from 10 rows on; traces wait for a minute."""
    return FeatureWriter(store, 10 * ROW_BYTES, Backoff(0.0, 0.0), 60.0, clock)


def item(number: int, tenant: str = "acme", rows: int = 4, layers: tuple[int, ...] = (1, 2)) -> Item:
    """A trace whose features hold its number."""
    meta = FeatureMeta(number, rows, "float32", layers, 3)
    width = 3 * len(layers)
    tensors = {
        "features": TensorData("F32", (rows, width), bytes([number]) * (4 * rows * width)),
        "last_hidden": TensorData("F32", (rows, 3), bytes([number]) * (12 * rows)),
    }
    return Item("t", tenant, 1, b"", f"trace:{number}", float(number), lambda: tensors, meta)


def rows_of(store: TensorStore, one: Item) -> tuple[bytes, bytes]:
    """An item's rows as a reader finds them."""
    reference = one.reference
    assert reference is not None
    deserialize: Any = safetensors.deserialize
    tensors = dict(deserialize(store.get(reference.uri, reference.sha256)))
    found = []
    for name in ("features", "last_hidden"):
        rows, width = tensors[name]["shape"]
        assert rows == (reference.object_rows or reference.rows)
        data = bytes(tensors[name]["data"])
        first, end = reference.first_row, reference.first_row + reference.rows
        found.append(data[4 * width * first : 4 * width * end])
    return found[0], found[1]


def test_traces_of_a_tenant_share_objects(store: FaultyStore, writer: FeatureWriter) -> None:
    """Each reference names its own rows; no object holds two tenants or kinds, or takes more when full."""
    items = [item(number, ("acme", "other")[number % 2]) for number in range(10)]
    items.append(item(10, layers=(1,)))
    writer.write(items)
    for number, one in enumerate(items):
        reference = one.reference
        assert reference is not None
        assert (reference.feature_start, reference.rows) == (number, 4)
        features, last_hidden = rows_of(store, one)
        assert (features, last_hidden) == (bytes([number]) * len(features), bytes([number]) * 48)
    objects: dict[str, set[str]] = {}
    for one in items:
        assert one.reference is not None
        objects.setdefault(one.reference.uri, set()).add(one.key)
        assert f"/{one.key}/traces/" in one.reference.uri
    assert all(len(tenants) == 1 for tenants in objects.values())
    assert len(objects) == 5  # 3 + 2 of each tenant, and another kind
    statistics = writer.statistics()
    assert (statistics.stored, statistics.lost, statistics.objects) == (11, 0, 5)
    assert statistics.bytes == sum(
        {one.reference.uri: one.reference.bytes for one in items if one.reference}.values()
    )


def test_what_is_stored_is_not_written_again(store: FaultyStore, writer: FeatureWriter) -> None:
    """After a failure in the middle of a batch the next attempt goes on behind what is there."""
    items = [item(number, f"tenant-{number}") for number in range(3)]
    store.fail_at = 2
    with pytest.raises(StoreUnavailableError):
        writer.write(items)
    assert [one.reference is not None for one in items] == [True, False, False]
    writer.write(items)
    assert store.writes == 4
    assert all(rows_of(store, one) for one in items)


def test_patience_ends(store: FaultyStore, writer: FeatureWriter, clock: Clock) -> None:
    """A full disk holds traces up for a while; then they go without features, afterwards with them."""
    store.away = StoreFullError
    first = item(0)
    for _ in range(3):
        with pytest.raises(StoreFullError):
            writer.write([first])
        clock.now += 20
    writer.write([first])
    assert (first.reference, first.meta, writer.statistics().lost) == (None, None, 1)
    assert writer.errors == 4
    second = item(1)
    store.away = None
    writer.write([second])
    assert rows_of(store, second)
    store.away = StoreFullError
    with pytest.raises(StoreFullError):  # a new outage, new patience
        writer.write([item(2)])


def test_at_the_end_nothing_waits(store: FaultyStore, writer: FeatureWriter) -> None:
    """A process that ends saves its traces rather than lose them with their features."""
    store.away = StoreUnavailableError
    writer.hurry()
    one = item(0)
    writer.write([one])
    assert (one.reference, writer.statistics().lost) == (None, 1)


def test_objects_of_records_that_wait_are_written_again(
    store: FaultyStore, writer: FeatureWriter, clock: Clock
) -> None:
    """While the log is away for hours, orphan collection must not take them for forgotten."""
    one = item(0)
    writer.write([one])
    clock.now += REFRESH_SECONDS - 1
    writer.refresh()
    assert store.writes == 1
    store.delete_tenant("acme")
    clock.now += 2
    writer.refresh()
    assert store.writes == 2
    assert rows_of(store, one)
    writer.forget()
    clock.now += 2 * REFRESH_SECONDS
    writer.refresh()
    assert store.writes == 2


def test_a_revoked_trace_stores_nothing(store: FaultyStore, writer: FeatureWriter) -> None:
    """What its tenant took back while it waited leaves no features."""
    one = item(0)
    one.revoked = True
    writer.write([one])
    assert store.writes == 0
