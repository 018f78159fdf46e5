"""What is taken out of and put into a request's body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adaptive.endpoint import body as request_body
from adaptive.endpoint.body import CONTROL_FIELDS
from adaptive.endpoint.errors import EndpointError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"nonsense", b"\xff\xfe", b'{"a": 1} {"b": 2}', b"[" * 100_000, b'{"a":' * 100_000],
)
def test_a_body_that_is_no_json_is_a_bad_request(raw: bytes) -> None:
    """Broken, not UTF-8, two documents, nested without end: 400, never a crash."""
    with pytest.raises(EndpointError, match="the body is not JSON") as raised:
        request_body.parse(raw)
    assert (raised.value.status, raised.value.code) == (400, "invalid_json")


@pytest.mark.parametrize(("raw", "kind"), [(b"[]", "list"), (b'"text"', "str"), (b"null", "NoneType")])
def test_a_body_that_is_no_object_is_a_bad_request(raw: bytes, kind: str) -> None:
    """The message says what came instead."""
    with pytest.raises(EndpointError, match=f"must be a JSON object, not {kind}"):
        request_body.parse(raw)


@pytest.mark.parametrize(
    ("wish", "lookahead"),
    [
        ({}, None),
        ({"enabled": True}, None),
        ({"enabled": False}, 0),
        ({"enabled": False, "max_lookahead": 3}, 0),
        ({"max_lookahead": 0}, 0),
        ({"max_lookahead": 3}, 3),
        ({"enabled": True, "max_lookahead": 200}, 200),
        ({"max_lookahead": None}, None),
    ],
)
def test_speculation_becomes_a_cap(wish: dict[str, Any], lookahead: int | None) -> None:
    """0 is off, None is no wish; the field is gone from the body, which vLLM does not know."""
    body = {"model": "m", "speculation": wish}
    assert request_body.take_speculation(body) == lookahead
    assert body == {"model": "m"}


def test_no_speculation_field_is_no_wish() -> None:
    """The usual request."""
    assert request_body.take_speculation({"model": "m"}) is None


@pytest.mark.parametrize(
    ("wish", "field", "code"),
    [
        (True, "speculation", "invalid_type"),
        (None, "speculation", "invalid_type"),
        ([], "speculation", "invalid_type"),
        ("off", "speculation", "invalid_type"),
        ({"enabled": "yes"}, "speculation.enabled", "invalid_type"),
        ({"enabled": 1}, "speculation.enabled", "invalid_type"),
        ({"enabled": None}, "speculation.enabled", "invalid_type"),
        ({"max_lookahead": -1}, "speculation.max_lookahead", "invalid_type"),
        ({"max_lookahead": 2.0}, "speculation.max_lookahead", "invalid_type"),
        ({"max_lookahead": True}, "speculation.max_lookahead", "invalid_type"),
        ({"max_lookahead": "4"}, "speculation.max_lookahead", "invalid_type"),
        ({"lookahead": 4}, "speculation.lookahead", "unknown_field"),
        ({"enabled": True, "": 1}, "speculation.", "unknown_field"),
    ],
)
def test_malformed_speculation_names_the_field(wish: Any, field: str, code: str) -> None:
    """The error's message and `param` name what is wrong, the message what would be right."""
    with pytest.raises(EndpointError) as raised:
        request_body.take_speculation({"speculation": wish})
    error = raised.value
    assert (error.status, error.parameter, error.code) == (400, field, code)
    assert error.message.startswith(field)
    assert "must be" in error.message or "use enabled and max_lookahead" in error.message


def test_a_long_wrong_value_is_cut() -> None:
    """An error does not send a megabyte back."""
    with pytest.raises(EndpointError) as raised:
        request_body.take_speculation({"speculation": {"enabled": "x" * 1_000_000}})
    assert len(raised.value.message) < 200


def test_control_fields_are_replaced_by_ours() -> None:
    """Whatever steers the engine, or names another tenant's cache, comes from the endpoint alone."""
    sent = dict.fromkeys(CONTROL_FIELDS, "theirs") | {
        "vllm_xargs": {"adaptive_tenant": "other", "anything": 1},
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
    }
    injected = json.loads(request_body.inject(sent, {"adaptive_tenant": "acme"}, "salt"))
    assert injected == {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "vllm_xargs": {"adaptive_tenant": "acme"},
        "cache_salt": "salt",
    }


def test_beam_search_is_refused_by_name() -> None:
    """VLLM's beam search makes requests of its own, without the tenant's fields: 400, and what to do."""
    with pytest.raises(EndpointError, match="use_beam_search is not served here: leave it out") as raised:
        request_body.inject({"model": "m", "use_beam_search": True}, {}, "salt")
    error = raised.value
    assert (error.status, error.parameter, error.code) == (400, "use_beam_search", "unsupported_field")


@pytest.mark.parametrize("value", [False, None])
def test_no_beam_search_is_the_usual_request(value: object) -> None:
    """Clients that spell out the default are served."""
    assert "model" in json.loads(request_body.inject({"model": "m", "use_beam_search": value}, {}, "salt"))


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_everything_else_passes_unchanged(sent: dict[str, Any]) -> None:
    """The body a client sent arrives as it was, whatever is in it."""
    assume(not sent.get("use_beam_search"))
    kept = {key: value for key, value in sent.items() if key not in {*CONTROL_FIELDS, "vllm_xargs"}}
    parsed = request_body.parse(json.dumps(sent).encode())
    injected = json.loads(request_body.inject(parsed, {"a": 1}, "s"))
    assert injected == kept | {"vllm_xargs": {"a": 1}, "cache_salt": "s"}
