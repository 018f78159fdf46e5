"""Which records of the log belong to erased tenants: a view over the erasures that every reader asks.

On Kafka a record cannot be taken out of a partition, so an erasure is an instruction to everybody who reads:
below the watermark the tenant's records do not exist. They are left out unread, and their bytes go when
retention passes. A tenant created again under the same name lies above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

from adaptive.contracts import TOPIC_TENANT_ERASED, TenantErased, Watermark
from collectors.state import CompactedView

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Self

    from collectors.transport import Transport


class ErasedTenants:
    """Every erasure the log knows, brought up to date by `poll`. Used by one thread.

    Args:
        transport: The log.
    """

    def __init__(self, transport: Transport) -> None:
        self._view: Final = CompactedView(transport, TOPIC_TENANT_ERASED, TenantErased, merge=later_of)

    @property
    def latest(self) -> Mapping[str, TenantErased]:
        """Erasure per tenant as of the last `poll`."""
        return self._view.latest

    def poll(self) -> dict[str, TenantErased]:
        """Read up to the end of the topic; returns the erasures that are new or were raised.

        Raises:
            TransportUnavailableError: the log is away; what is known stays.
        """
        return {tenant: erased for tenant, erased in self._view.poll().items() if erased is not None}

    def is_erased(
        self, topic: str, partition: int, offset: int, tenant: str, generation: int | None = None
    ) -> bool:
        """Whether a record must be left out.

        Args:
            topic: Where it lies, a dead-letter topic included.
            partition: Its partition.
            offset: Its offset.
            tenant: Whose it is: its key.
            generation: Of the account it was made under, where the record states one.
        """
        erased = self._view.latest.get(tenant)
        return erased is not None and covers(erased, topic, partition, offset, generation)

    def close(self) -> None:
        """Stop reading; what is known stays."""
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@runtime_checkable
class ErasableLog(Protocol):
    """A log that can remove single records; Kafka cannot, there retention does it."""

    def erase(self, tenant: str, watermarks: Collection[Watermark]) -> dict[str, int]:
        """Delete a tenant's records below watermarks, and telemetry that names it.

        Returns:
            Records deleted per topic.

        Raises:
            TransportUnavailableError: not everything is deleted yet: do it again.
        """

    def expire(self, tenant: str, before: float, most_bytes: int | None) -> int:
        """Delete what a tenant's own retention does not let it keep, compacted topics aside.

        Args:
            tenant: Key of its records.
            before: Unix seconds; older records go.
            most_bytes: Bytes kept, the newest; None: no limit.

        Returns:
            Records deleted.
        """


def mention(tenant: str) -> bytes:
    """How a message that names a tenant contains it: a whole msgpack string, so no longer name matches."""
    return msgspec.msgpack.encode(tenant)


def covers(
    erased: TenantErased, topic: str, partition: int, offset: int, generation: int | None = None
) -> bool:
    """Whether an erasure takes in a record of its tenant; arguments as `ErasedTenants.is_erased`."""
    if generation is not None and generation <= erased.generation:
        return True
    return any(
        mark.topic == topic and mark.partition == partition and offset < mark.offset
        for mark in erased.watermarks
    )


def later_of(known: TenantErased, other: TenantErased) -> TenantErased:
    """Join two announcements of a tenant's erasures: the newer one, with the highest watermarks of both.

    The log delivers at least once, so an older announcement may come again; nothing that was erased may come
    back by that.
    """
    newer, older = (other, known) if _rank(other) >= _rank(known) else (known, other)
    marks = {(mark.topic, mark.partition): mark.offset for mark in older.watermarks}
    for mark in newer.watermarks:
        place = (mark.topic, mark.partition)
        marks[place] = max(mark.offset, marks.get(place, 0))
    watermarks = [Watermark(topic, partition, offset) for (topic, partition), offset in sorted(marks.items())]
    return msgspec.structs.replace(newer, watermarks=watermarks)


def watermarks(transport: Transport, topics: Iterable[str]) -> list[Watermark]:
    """The ends of topics: whatever lies in them now is below.

    Raises:
        TransportUnavailableError: the log is away.
    """
    return [
        Watermark(topic, partition, offset)
        for topic in sorted(topics)
        for partition, offset in sorted(transport.end_offsets(topic).items())
    ]


def _rank(erased: TenantErased) -> tuple[int, bool, float]:
    return erased.generation, erased.sealed, erased.erased_at
