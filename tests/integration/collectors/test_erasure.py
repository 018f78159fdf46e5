"""Erased tenants' records, on a real log of every transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from adaptive import contracts
from adaptive.contracts import TOPIC_TENANT_ERASED, TOPIC_TRACE_RECORDED, TenantErased
from collectors.consumer import TraceConsumer
from collectors.erasure import ErasedTenants, watermarks
from tests.integration.collectors.test_messages import read_all, trace

if TYPE_CHECKING:
    from collectors.transport import Transport
    from tests.integration.collectors.conftest import Log

POLL_SECONDS = 5.0


def send(transport: Transport, number: int, tenant: str, generation: int = 0) -> None:
    """Append a trace."""
    record = msgspec.structs.replace(trace(number, tenant), generation=generation)
    transport.send(TOPIC_TRACE_RECORDED, tenant, contracts.encode(record))
    transport.flush(POLL_SECONDS)


def erase(transport: Transport, tenant: str, generation: int = 0) -> None:
    """Announce an erasure of everything in the log now."""
    topics = {TOPIC_TRACE_RECORDED, TOPIC_TRACE_RECORDED + contracts.DEAD_LETTER_SUFFIX}
    message = TenantErased(tenant, "erase_1", generation, 1.0, watermarks(transport, topics))
    transport.send(TOPIC_TENANT_ERASED, tenant, contracts.encode(message))
    transport.flush(POLL_SECONDS)


def drain(consumer: TraceConsumer, wanted: int) -> list[tuple[str, str]]:
    """Tenant and trace id of what is delivered, until nothing is left."""
    found: list[tuple[str, str]] = []
    for _ in range(100):
        found += [(item.message.tenant, item.message.trace_id) for item in consumer.poll(0.1)]
        if len(found) >= wanted and not any(consumer.lag().values()):
            break
    return sorted(found)


def test_records_of_an_erased_tenant_are_never_delivered(transport: Transport) -> None:
    """Not those below the watermark, not late ones of the erased generation; everybody else's are."""
    for number in range(3):
        send(transport, number, "acme")
        send(transport, number, "other")
    erase(transport, "acme")
    send(transport, 3, "acme")  # late, of an engine that was cut off
    send(transport, 4, "acme", generation=1)  # of a new tenant of this name
    with ErasedTenants(transport) as erased, TraceConsumer(transport, "learners", erased=erased) as consumer:
        assert drain(consumer, 4) == [
            ("acme", "request:4"),
            ("other", "request:0"),
            ("other", "request:1"),
            ("other", "request:2"),
        ]
        assert consumer.erased == 4


def test_what_is_erased_is_not_even_dead_lettered(transport: Transport) -> None:
    """A poison record of an erased tenant is passed over unread: a copy of it would be content again."""
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"\xc1 poison")
    erase(transport, "acme")
    with ErasedTenants(transport) as erased, TraceConsumer(transport, "learners", erased=erased) as consumer:
        assert drain(consumer, 0) == []
    assert read_all(transport, TOPIC_TRACE_RECORDED + contracts.DEAD_LETTER_SUFFIX) == []


def test_a_commit_moves_past_erased_records(log: Log) -> None:
    """Positions a caller commits by hand end up behind what was passed over for it."""
    transport = log.open()
    send(transport, 0, "acme")
    first = read_all(transport, TOPIC_TRACE_RECORDED)[0]
    erase(transport, "acme")
    with ErasedTenants(transport) as erased, TraceConsumer(transport, "learners", erased=erased) as consumer:
        drain(consumer, 0)
        consumer.commit({first.partition: first.offset})
    with TraceConsumer(transport, "learners") as again:  # which knows of no erasure: only the commit helps
        assert drain(again, 0) == []
