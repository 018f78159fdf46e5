"""What is added to responses and streams."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from adaptive.endpoint.exchange import Exchange
from adaptive.endpoint.response import ResponseRewriter

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

TURBO = {"arm": "turbo", "version": 0, "verify_steps": 7, "drafted": 28, "accepted": 9}
PREDICTION = {"arm": "prediction", "version": 0, "verify_steps": 2, "drafted": 16, "accepted": 11}
SHOWN = [
    {"arm": "turbo", "version": 0, "verify_steps": 7},
    {"arm": "prediction", "version": 0, "verify_steps": 2},
]


def exchange(*, predicted: bool = False, reported: bool = True) -> Exchange:
    """A request that turbo and its prediction drafted for."""
    return Exchange(
        "id", "acme", predicted=predicted, drafters=[TURBO, PREDICTION] if reported else None, prompt_tokens=5
    )


def rewritten(
    made: Exchange,
    chunks: Sequence[bytes],
    kind: str = "application/json",
    status: int = 200,
    *,
    details: bool = False,
) -> tuple[list[bytes], dict[str, str]]:
    """Bodies and headers as the client gets them."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def serve() -> None:
        path = "/v1/chat/completions"
        rewriter = ResponseRewriter(send, made, [(b"x-ours", b"1")], path=path, details=details)
        headers = [(b"content-type", kind.encode()), (b"content-length", b"999")]
        if kind == "text/event-stream":
            headers.pop()
        await rewriter({"type": "http.response.start", "status": status, "headers": headers})
        for chunk in chunks:
            await rewriter({"type": "http.response.body", "body": chunk, "more_body": True})
        await rewriter({"type": "http.response.body", "body": b"", "more_body": False})

    asyncio.run(serve())
    assert sent[-1].get("more_body", False) is False
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert headers["x-ours"] == "1"
    return [message["body"] for message in sent[1:]], headers


def whole(made: Exchange, answer: Any, **options: Any) -> dict[str, Any]:
    """A JSON answer as the client gets it, its declared length checked."""
    raw = json.dumps(answer).encode()
    (body,), headers = rewritten(made, [raw[:10], raw[10:]], **options)
    assert headers["content-length"] == str(len(body))
    decoded: dict[str, Any] = json.loads(body)
    return decoded


def test_a_response_says_who_really_drafted() -> None:
    """Beside vLLM's own metrics, without accepted counts; tokens are taken from the usage."""
    made = exchange()
    spec = {"num_spec_steps": 7}
    answer = {"usage": {"total_tokens": 50}, "metrics": {"speculative_decoding": spec}, "choices": [1]}
    assert whole(made, answer) == answer | {
        "metrics": {"speculative_decoding": spec, "adaptive": {"drafters": SHOWN}}
    }
    assert made.tokens == 50


def test_accepted_counts_need_acceptance_details() -> None:
    """They can leak prompts by timing, so an operator decides."""
    answer = whole(exchange(), {"usage": {"total_tokens": 50}, "metrics": None}, details=True)
    assert answer["metrics"]["adaptive"]["drafters"] == [TURBO, PREDICTION]


def test_nothing_is_made_up_where_the_engine_reported_nothing() -> None:
    """No report, no `metrics.adaptive`; a body of another kind stays as it is."""
    answer = {"usage": {"total_tokens": 50}, "metrics": None}
    assert whole(exchange(reported=False), answer) == answer
    assert whole(exchange(), {"tokens": [1, 2], "count": 2}) == {"tokens": [1, 2], "count": 2}


def test_only_the_clients_prediction_counts_as_predicted() -> None:
    """Accepted and rejected tokens of the prediction arm, beside what else the details say."""
    usage = {"total_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 3}}
    details = whole(exchange(predicted=True), {"usage": dict(usage)})["usage"]["completion_tokens_details"]
    assert details == {
        "reasoning_tokens": 3,
        "accepted_prediction_tokens": 11,
        "rejected_prediction_tokens": 5,
    }
    assert whole(exchange(), {"usage": dict(usage)})["usage"] == usage
    unused = exchange(predicted=True, reported=False)
    assert whole(unused, {"usage": {"total_tokens": 1}})["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


STREAM = [
    b'data: {"choices":[{"delta":{"content":"a \\"usage\\" b"}}]}\n\n',
    b'data: {"choices":[{"delta":{}}],"usage":{"total_tokens":7}}\n\n',
    b'data: {"choices":[],"usage":{"total_tokens":9}}\n\n',
    b"data: [DONE]\n\n",
]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_last_chunk_of_a_stream_says_who_drafted(size: int) -> None:
    """Other events, those with running usage included, pass byte for byte, however the bytes arrive."""
    made = exchange(predicted=True)
    stream = b"".join(STREAM)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    bodies, _ = rewritten(made, pieces, "text/event-stream")
    events = b"".join(bodies).split(b"\n\n")
    assert events[0] + b"\n\n" == STREAM[0]
    assert events[1] + b"\n\n" == STREAM[1]
    assert events[3:] == [b"data: [DONE]", b""]
    last = json.loads(events[2].removeprefix(b"data: "))
    assert last["metrics"] == {"adaptive": {"drafters": SHOWN}}
    assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 11
    assert made.tokens == 9


def test_events_are_not_held_back() -> None:
    """Each is passed on as soon as it is whole."""
    bodies, headers = rewritten(exchange(), STREAM, "text/event-stream")
    assert len(bodies) == len(STREAM) + 1
    assert "content-length" not in headers


def test_the_responses_api_ends_with_the_whole_response() -> None:
    """Its last event carries the same metrics."""
    event = {"type": "response.completed", "response": {"usage": {"total_tokens": 9}}}
    chunk = b"event: response.completed\ndata: " + json.dumps(event).encode() + b"\n\n"
    (body, _), _ = rewritten(exchange(), [chunk], "text/event-stream")
    name, data = body.strip().split(b"\n")
    assert name == b"event: response.completed"
    response = json.loads(data.removeprefix(b"data: "))["response"]
    assert response["metrics"] == {"adaptive": {"drafters": SHOWN}}


def test_an_error_in_a_stream_takes_the_one_shape() -> None:
    """What failed inside stays inside there too."""
    error = {"error": {"message": "secret", "type": "InternalServerError", "param": None, "code": 500}}
    (body, _), _ = rewritten(
        exchange(), [b"data: " + json.dumps(error).encode() + b"\n\n"], "text/event-stream"
    )
    shown = json.loads(body.removeprefix(b"data: "))["error"]
    assert shown["code"] == "internal_error"
    assert "secret" not in shown["message"]


@pytest.mark.parametrize(
    ("status", "error", "code", "parameter"),
    [
        (404, {"message": "no such model", "param": "model"}, "model_not_found", "model"),
        (404, {"message": "nothing here", "param": None}, "not_found", None),
        (400, {"message": "bad", "param": "body.messages.0.role"}, "invalid_request", "messages.0.role"),
        (400, {"message": "n must be at least 1", "param": None}, "invalid_request", "n"),
        (400, {"message": "nothing of the kind", "param": None}, "invalid_request", None),
        (400, {"message": "too long", "param": "input_tokens"}, "invalid_request", "messages"),
        (503, {"message": "queue is full", "param": None}, "overloaded", None),
        (418, "no object", "invalid_request", None),
    ],
)
def test_errors_take_the_one_shape(status: int, error: Any, code: str, parameter: str | None) -> None:
    """Codes are words, parameters name fields as the client wrote them."""
    shown = whole(exchange(), {"error": error}, status=status)["error"]
    assert (shown["code"], shown["param"]) == (code, parameter)
    assert shown["message"]
    assert set(shown) == {"message", "type", "param", "code"}
