"""Feature objects that may go: past a tenant's age or bytes, or referred to by no record.

An object is written before the records that refer to it, so a young one may be waiting for its records: only
what is older than `GRACE_SECONDS` is an orphan. A publisher whose log is away for longer writes its objects
again in time (`collectors.writer.REFRESH_SECONDS`), and an object that was touched since it was listed stays.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from adaptive import contracts
from collectors.features import DIRECTORY
from collectors.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.store import ObjectInfo, TensorStore
    from collectors.transport import Transport

_log = structlog.get_logger(__name__)

GRACE_SECONDS: Final = 7200.0
_POLL_SECONDS: Final = 1.0


class FeatureQuota(NamedTuple):
    """What is kept of one tenant's features."""

    seconds: float
    """Most age of an object."""
    bytes: int
    """Most bytes of all objects; the oldest go first."""


class Collected(msgspec.Struct):
    """What a collection removed and left."""

    expired: int = 0
    """Objects past their tenant's age."""
    over_quota: int = 0
    """Objects removed to make room."""
    orphans: int = 0
    """Objects that no record referred to."""
    failed: int = 0
    """Objects that could not be removed; the next collection tries again."""
    bytes_removed: int = 0
    objects: int = 0
    """Left."""
    bytes: int = 0
    """Left."""


class _Features(msgspec.Struct):
    uri: str


class _Claim(msgspec.Struct):
    """The part of a trace record that says where its features lie."""

    features: _Features | None = None


def collect(
    store: TensorStore,
    quota: Callable[[str], FeatureQuota],
    transport: Transport | None = None,
    *,
    grace: float = GRACE_SECONDS,
    clock: Callable[[], float] = time.time,
) -> Collected:
    """Remove the feature objects that may go.

    Args:
        store: The tensor store.
        quota: What is kept of a tenant.
        transport: The log, to look for orphans too: every record in it is read once. None: quotas only.
        grace: Seconds for which an object needs no record.
        clock: Unix seconds.

    Raises:
        StoreUnavailableError, TransportUnavailableError: store or log is away; what was removed until then
            had to go anyway.
    """
    found = Collected()
    now = clock()
    kept: list[ObjectInfo] = []
    for tenant, objects in store.objects(DIRECTORY).items():
        kept += _within_quota(store, objects, quota(tenant), now, found)
    if transport is not None:
        suspects = [each for each in kept if now - each.modified > grace]
        if suspects:
            referenced = _referenced(transport)
            for each in suspects:
                if each.uri not in referenced and _remove(store, each, found):
                    found.orphans += 1
                    kept.remove(each)
    found.objects, found.bytes = len(kept), sum(each.bytes for each in kept)
    if found.bytes_removed:
        _log.info("feature objects removed", **msgspec.structs.asdict(found))
    return found


def _within_quota(
    store: TensorStore, objects: list[ObjectInfo], quota: FeatureQuota, now: float, found: Collected
) -> list[ObjectInfo]:
    kept = []
    room = quota.bytes
    for each in sorted(objects, key=lambda one: one.modified, reverse=True):
        expired = now - each.modified > quota.seconds
        room -= each.bytes
        if (expired or room < 0) and _remove(store, each, found):
            found.expired += expired
            found.over_quota += not expired
        else:
            kept.append(each)
    return kept


def _referenced(transport: Transport) -> set[str]:
    """URIs that records refer to, dead letters included: they may be replayed."""
    topic = contracts.TOPIC_TRACE_RECORDED
    decoder = msgspec.msgpack.Decoder(_Claim)
    uris = set()
    reader = transport.consumer([topic, topic + contracts.DEAD_LETTER_SUFFIX], None)
    try:
        while any(reader.lag().values()):
            for record in reader.poll(_POLL_SECONDS, 2000):
                try:
                    claim = decoder.decode(record.value or b"")
                except msgspec.MsgspecError:
                    continue  # a dead letter that is no trace refers to nothing
                if claim.features is not None:
                    uris.add(claim.features.uri)
    finally:
        reader.close()
    return uris


def _remove(store: TensorStore, each: ObjectInfo, found: Collected) -> bool:
    try:
        removed = store.delete(each)
    except StoreError as error:
        found.failed += 1
        _log.warning("feature object could not be removed", uri=each.uri, error=str(error))
        return False
    if removed:
        found.bytes_removed += each.bytes
    return removed
