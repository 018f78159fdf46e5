"""A log with a few traces, for the trace commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive.contracts import (
    TOPIC_TENANT_CHANGED,
    TOPIC_TRACE_RECORDED,
    Arm,
    SamplingSummary,
    TenantChanged,
    TenantState,
    TraceRecord,
    VerifyStep,
    encode,
)
from collectors.transport import OutgoingRecord

if TYPE_CHECKING:
    from collectors.transport import Transport

HEADERS = {"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", "binary": bytes(range(256))}


def trace(
    tenant: str = "acme",
    request: str = "r1",
    segment: int = 0,
    *,
    arm: Arm = Arm.TURBO,
    version: int = 0,
    accepted: int = 2,
    created_at: float = 1_000_000.0,
    tokenizer: str = "",
) -> TraceRecord:
    """A trace of two verify steps with 4 drafts each; the first accepted `accepted`, the second none."""
    return TraceRecord(
        trace_id=f"{request}:{segment}",
        tenant=tenant,
        request_id=request,
        segment=segment,
        created_at=created_at,
        target_sha256="1" * 64,
        turbo_sha256="2" * 64,
        tokenizer_sha256=tokenizer,
        prompt_ids=[11, 12, 13] if segment == 0 else [],
        prompt_length=3,
        output_start=0,
        output_ids=[21, 22, 23, 24],
        steps=[
            VerifyStep(arm, version, 0, [21, 22, 98, 99], accepted, [1.0, 0.5, 0.25, 0.1]),
            VerifyStep(arm, version, accepted + 1, [31, 32, 33, 34], 0, [1.0, 0.5, 0.25, 0.1]),
        ],
        sampling=SamplingSummary(),
        finished=True,
    )


def send(transport: Transport, *traces: TraceRecord) -> None:
    """Append traces with headers."""
    transport.send_many(
        [OutgoingRecord(TOPIC_TRACE_RECORDED, record.tenant, encode(record), HEADERS) for record in traces]
    )


def consent(transport: Transport, tenant: str, *, learn: bool) -> None:
    """Write a tenant's account."""
    account = TenantChanged(
        tenant, 1, TenantState.ACTIVE, [], learn=learn, share=False, freeze=False, changed_at=0.0
    )
    transport.send(TOPIC_TENANT_CHANGED, tenant, encode(account))
