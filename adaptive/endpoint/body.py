"""What is taken out of, and put into, the body of a client's request. Pure functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from adaptive.endpoint.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL_FIELDS: Final = ("cache_salt", "kv_transfer_params", "ec_transfer_params", "request_id", "priority")
"""Fields of vLLM's protocol that steer the engine or another tenant's cache; only the endpoint sets them."""


def parse(raw: bytes) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        EndpointError: 400, not a JSON object.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:  # the latter: brackets nested without end
        raise EndpointError(400, f"the body is not JSON ({error})", code="invalid_json") from None
    if not isinstance(body, dict):
        raise EndpointError(
            400, f"the body must be a JSON object, not {type(body).__name__}", code="invalid_json"
        )
    return body


def take_speculation(body: dict[str, Any]) -> int | None:
    """Remove `speculation` and return the request's lookahead cap (0: off, None: no wish).

    Raises:
        EndpointError: 400 naming the field.
    """
    if "speculation" not in body:
        return None
    wish = body.pop("speculation")
    if not isinstance(wish, dict):
        raise _invalid("speculation", 'an object like {"enabled": true, "max_lookahead": 4}', wish)
    unknown = sorted(set(wish) - {"enabled", "max_lookahead"})
    if unknown:
        raise EndpointError(
            400,
            f"speculation.{unknown[0]} is unknown: use enabled and max_lookahead",
            parameter=f"speculation.{unknown[0]}",
            code="unknown_field",
        )
    enabled = wish.get("enabled", True)
    if not isinstance(enabled, bool):
        raise _invalid("speculation.enabled", "true or false", enabled)
    lookahead = wish.get("max_lookahead")
    if lookahead is not None and (
        isinstance(lookahead, bool) or not isinstance(lookahead, int) or lookahead < 0
    ):
        raise _invalid("speculation.max_lookahead", "an integer of 0 or more", lookahead)
    return lookahead if enabled else 0


def inject(body: dict[str, Any], extra: Mapping[str, str | int], cache_salt: str) -> bytes:
    """Strip every control field a client may have sent, put ours in, and return the new body.

    `vllm_xargs` is dropped whole: nothing in it is for clients to say.
    """
    if body.get("use_beam_search"):
        raise EndpointError(
            400,
            "use_beam_search is not served here: leave it out, and use n for several answers",
            parameter="use_beam_search",
            code="unsupported_field",
        )
    for field in CONTROL_FIELDS:
        body.pop(field, None)
    body["vllm_xargs"] = dict(extra)
    body["cache_salt"] = cache_salt
    return json.dumps(body).encode()


def _invalid(field: str, wanted: str, found: Any) -> EndpointError:
    return EndpointError(
        400, f"{field} must be {wanted}, not {json.dumps(found)[:80]}", parameter=field, code="invalid_type"
    )
