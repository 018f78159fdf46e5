"""What is taken out of, and put into, the body of a client's request. Pure functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.fields import Treatment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adaptive.endpoint.fields import Table


def parse(raw: bytes) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        EndpointError: 400, not a JSON object, or one that holds what JSON or UTF-8 cannot express (NaN, lone
            surrogates).
    """
    try:
        body = json.loads(raw, parse_constant=_no_constant)
        # What cannot be written again would fail somewhere inside vLLM's server.
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # the latter: brackets nested without end
        raise EndpointError(400, f"the body is not JSON ({_short(error)})", code="invalid_json") from None
    if not isinstance(body, dict):
        raise EndpointError(
            400, f"the body must be a JSON object, not {type(body).__name__}", code="invalid_json"
        )
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _short(error: Exception) -> str:
    """An error's text without the client's text: UnicodeEncodeError would show what it could not encode."""
    return "lone surrogate in a string" if isinstance(error, UnicodeEncodeError) else str(error)


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


def undrafted(body: Mapping[str, Any]) -> bool:
    """Whether the request asks for sampling that cannot be applied to drafts, so that it runs without any."""
    return bool(body.get("min_p")) or bool(body.get("logit_bias"))


def prepare(body: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The fields that reach vLLM.

    Raises:
        EndpointError: 400 naming a field that is not served here.
    """
    kept = {}
    for field, value in body.items():
        treatment, reason = table.get(field, (Treatment.STRIP, ""))
        if treatment is Treatment.ALLOW:
            kept[field] = value
        elif treatment is Treatment.REFUSE and value:
            raise EndpointError(
                400, f"{field} is not served here: {reason}", parameter=field, code="unsupported_field"
            )
    return kept


def refuse_hosted_tools(body: Mapping[str, Any]) -> None:
    """Keep the responses API to function tools: others would run in the server, for whoever asks.

    Raises:
        EndpointError: 400 naming the tool.
    """
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise EndpointError(
                400,
                f"tools[{index}].type must be function: tools hosted by the server are not served here",
                parameter=f"tools[{index}].type",
                code="unsupported_field",
            )


def _invalid(field: str, wanted: str, found: Any) -> EndpointError:
    return EndpointError(
        400, f"{field} must be {wanted}, not {json.dumps(found)[:80]}", parameter=field, code="invalid_type"
    )
