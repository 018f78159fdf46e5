"""What is taken out of and put into a request's body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.endpoint import body as request_body
from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.fields import CHAT, COMPLETION, RESPONSES, TABLES, Treatment

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"nonsense", b"\xff\xfe", b'{"a": 1} {"b": 2}', b"[" * 100_000, b'{"a":' * 100_000),
        *(b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": "\\ud800"}'),
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_json_is_a_bad_request(raw: bytes) -> None:
    """Broken, not UTF-8, two documents, nested without end, numbers and text that are none: 400, no crash."""
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


@pytest.mark.parametrize("path", TABLES)
def test_only_allowed_fields_reach_the_server(path: str) -> None:
    """Whatever steers the engine, or names another tenant's cache, is left out, and so is the unknown."""
    table = TABLES[path]
    sent = {
        field: "theirs" for field, (treatment, _) in table.items() if treatment is not Treatment.REFUSE
    } | {"unheard_of": 1}
    kept = request_body.prepare(sent, table)
    assert kept == {
        field: "theirs" for field, (treatment, _) in table.items() if treatment is Treatment.ALLOW
    }
    for field in ("vllm_xargs", "cache_salt", "priority", "request_id", "kv_transfer_params", "session_id"):
        assert field not in kept


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (path, field)
        for path, table in TABLES.items()
        for field, (treatment, _) in table.items()
        if treatment is Treatment.REFUSE
    ],
)
def test_what_is_not_served_is_refused_by_name(path: str, field: str) -> None:
    """400 with the field and the reason; asking for nothing (null, false) is no reason to refuse."""
    with pytest.raises(EndpointError, match=f"{field} is not served here: ") as raised:
        request_body.prepare({"model": "m", field: True}, TABLES[path])
    error = raised.value
    assert (error.status, error.parameter, error.code) == (400, field, "unsupported_field")
    for nothing in (False, None):
        assert request_body.prepare({"model": "m", field: nothing}, TABLES[path]) == {"model": "m"}


def test_every_decision_has_a_reason() -> None:
    """The table says why, field by field."""
    assert all(reason for table in TABLES.values() for _, reason in table.values())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, False),
        ({"min_p": 0, "logit_bias": {}}, False),
        ({"min_p": None, "logit_bias": None}, False),
        ({"min_p": 0.1}, True),
        ({"logit_bias": {"5": -1}}, True),
    ],
)
def test_sampling_that_drafts_cannot_have(body: dict[str, Any], *, expected: bool) -> None:
    """min_p and logit_bias where they do something."""
    assert request_body.undrafted(body) is expected


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"type": "mcp"}, {}, "function", None])
def test_hosted_tools_are_refused(tool: Any) -> None:
    """Only tools that the client runs itself."""
    function = {"type": "function", "name": "f", "parameters": {}}
    request_body.refuse_hosted_tools({"tools": [function]})
    request_body.refuse_hosted_tools({"tools": None})
    with pytest.raises(EndpointError) as raised:
        request_body.refuse_hosted_tools({"tools": [function, tool]})
    assert (raised.value.status, raised.value.parameter) == (400, "tools[1].type")


@given(st.dictionaries(st.sampled_from([*CHAT, *COMPLETION, *RESPONSES]) | st.text(), JSON, max_size=8))
def test_what_passes_passes_unchanged(sent: dict[str, Any]) -> None:
    """An allowed field arrives as it was, whatever is in it; a refusal is always a 400 with a field."""
    for table in TABLES.values():
        refused: EndpointError | None = None
        kept: dict[str, Any] = {}
        try:
            parsed = request_body.parse(json.dumps(sent).encode())
            kept = request_body.prepare(parsed, table)
        except EndpointError as error:
            refused = error
        if refused is not None:
            assert refused.status == 400
            assert refused.code == "invalid_json" or refused.parameter in sent
        else:
            assert kept == {
                field: value
                for field, value in sent.items()
                if table.get(field, (Treatment.STRIP, ""))[0] is Treatment.ALLOW
            }
