"""Request headers: what they may say, and which of them vLLM's server gets to see."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from adaptive.contracts import Arm
from adaptive.endpoint.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORCEABLE: Final = (Arm.OFF, Arm.TURBO, Arm.ADAPTER)
"""Arms a request may be admitted with; the others are chosen step by step."""
ARM_HEADER: Final = b"x-adaptive-arm"
INTERNAL_KEY_HEADER: Final = b"x-adaptive-internal-key"
LEARN_HEADER: Final = b"x-adaptive-learn"
"""`off`: nothing of this request is recorded, whatever the account says. `on` cannot give what it has not."""
FORWARDED: Final = frozenset(
    {b"accept", b"content-type", b"host", b"traceparent", b"tracestate", b"user-agent"}
)
"""vLLM reads more: X-Vllm-Priority, X-data-parallel-rank, X-Session-ID, X-Request-Id and load metrics formats
are not for clients to set, and the key is none of its business."""


def is_internal(headers: Mapping[bytes, bytes], key: bytes) -> bool:
    """Whether the caller holds the internal key."""
    # As bytes: comparing strings raises where a header is not ASCII.
    return hmac.compare_digest(headers.get(INTERNAL_KEY_HEADER, b""), key)


def forced_arm(headers: Mapping[bytes, bytes], key: bytes) -> Arm | None:
    """The arm an internal caller asks for; anybody else's wish is ignored.

    Raises:
        EndpointError: 400, no such arm.
    """
    value = headers.get(ARM_HEADER)
    if value is None or not is_internal(headers, key):
        return None
    forced = next((arm for arm in FORCEABLE if arm.encode() == value), None)
    if forced is None:
        name = ARM_HEADER.decode()
        raise EndpointError(
            400, f"{name} must be one of {', '.join(FORCEABLE)}", parameter=name, code="invalid_arm"
        )
    return forced


def learn_wish(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the client lets this request be recorded.

    Raises:
        EndpointError: 400 for anything but on or off: a wish for privacy is never guessed.
    """
    value = headers.get(LEARN_HEADER, b"on").decode("latin-1").strip().lower()
    if value not in {"on", "off"}:
        name = LEARN_HEADER.decode()
        raise EndpointError(400, f"{name} must be on or off", parameter=name, code="invalid_header")
    return value == "on"


def require_json(headers: Mapping[bytes, bytes]) -> None:
    """Check the body's declared type.

    Raises:
        EndpointError: 415.
    """
    kind = headers.get(b"content-type", b"").decode("latin-1").split(";", 1)[0].strip().lower()
    if kind != "application/json":
        raise EndpointError(
            415,
            f"content-type must be application/json, not {kind[:80]!r}",
            parameter="content-type",
            code="unsupported_media_type",
        )


def forwarded(
    headers: Sequence[tuple[bytes, bytes]], body: bytes, request_id: str
) -> list[tuple[bytes, bytes]]:
    """Headers of the request as vLLM's server sees it."""
    return [
        *((name, value) for name, value in headers if name in FORWARDED),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
