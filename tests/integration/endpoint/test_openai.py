"""The official OpenAI client against a real endpoint: every feature with speculation on, as without.

The reference is the same request without speculation (`speculation: {"enabled": false}`), whose exactness the
engine tests pin.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.integration.endpoint.server import MODEL

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.integration.endpoint.server import Server

OFF: Final = {"speculation": {"enabled": False}}
SEA: Final[Any] = [{"role": "user", "content": "Write three sentences about the sea."}]
WEATHER: Final[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL: Final[Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Final[Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
            },
            "required": ["name", "population"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    """Acme's client."""
    return server.client()


def chat(client: OpenAI, messages: Any = SEA, *, off: bool = False, **options: Any) -> Any:
    """A greedy chat completion of at most 40 tokens unless asked otherwise."""
    body = options.pop("extra_body", {}) | (OFF if off else {})
    given: dict[str, Any] = {"max_tokens": 40, "temperature": 0} | options
    return client.chat.completions.create(model=MODEL, messages=messages, extra_body=body, **given)


def drafters(answer: Any) -> list[dict[str, Any]]:
    """`metrics.adaptive.drafters` of a response or chunk."""
    rows: list[dict[str, Any]] = answer.model_dump()["metrics"]["adaptive"]["drafters"]
    return rows


def drafted(answer: Any) -> int:
    """Drafts verified for a response."""
    return sum(row["drafted"] for row in drafters(answer))


def test_chat(client: OpenAI) -> None:
    """The same text as without speculation; headers and body say who drafted, beside vLLM's metrics."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=SEA, max_tokens=40, temperature=0
    )
    answer = raw.parse()
    assert (raw.headers["x-adaptive-drafter"], raw.headers["x-adaptive-drafter-version"]) == ("turbo", "0")
    assert raw.headers["x-adaptive-request-id"] in answer.id
    rows = {row["arm"]: row for row in drafters(answer)}
    assert rows["turbo"]["accepted"] > 0
    spec = answer.model_dump()["metrics"]["speculative_decoding"]
    assert spec["num_spec_steps"] == sum(row["verify_steps"] for row in rows.values())
    assert spec["num_accepted_draft_tokens"] == sum(row["accepted"] for row in rows.values())
    plain = chat(client, off=True)
    assert drafters(plain) == []
    assert plain.choices[0].message.content == answer.choices[0].message.content
    assert plain.usage == answer.usage


def test_a_stream_says_the_same(client: OpenAI) -> None:
    """Pieces add up to the answer; its last chunk carries usage and both metrics."""
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    whole = chat(client)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    spec = chunks[-1].model_dump()["metrics"]["speculative_decoding"]
    assert spec["num_draft_tokens"] == drafted(chunks[-1]) > 0
    without = list(chat(client, stream=True))
    assert all("metrics" not in chunk.model_dump() for chunk in without)
    assert without[-1].choices[0].finish_reason == "length"


def test_a_stream_can_be_coarser(client: OpenAI) -> None:
    """`stream_interval`, which `stream_coalesce` sets for everybody, groups tokens."""
    fine = list(chat(client, stream=True))
    coarse = list(chat(client, stream=True, extra_body={"stream_interval": 16}))
    assert len(coarse) <= 5 < len(fine)
    assert [
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) for chunks in (fine, coarse)
    ] == [chat(client).choices[0].message.content] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers(client: OpenAI, *, stream: bool) -> None:
    """With n = 3: three answers, one usage, and one report of who drafted for all of them."""
    options: dict[str, Any] = {"n": 3, "temperature": 0.8, "seed": 7, "max_tokens": 24}
    if not stream:
        answer = chat(client, **options)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = {choice.message.content for choice in answer.choices}
        last = answer
    else:
        *chunks, last = chat(client, stream=True, stream_options={"include_usage": True}, **options)
        pieces: dict[int, str] = {}
        for chunk in chunks:
            for choice in chunk.choices:
                pieces[choice.index] = pieces.get(choice.index, "") + (choice.delta.content or "")
        texts = set(pieces.values())
    assert len(texts) == 3
    assert last.usage.completion_tokens <= 72
    # Every token is a draft that was accepted, or one a step added itself.
    steps = sum(row["verify_steps"] for row in drafters(last))
    accepted = sum(row["accepted"] for row in drafters(last))
    assert steps > 0
    assert steps + accepted <= last.usage.completion_tokens + 3 * 8


def test_stop_strings(client: OpenAI) -> None:
    """A draft that runs over a stop string is cut where no speculation would have stopped."""
    whole = chat(client).choices[0].message.content
    stop = whole[12:16]
    answer, plain = chat(client, stop=[stop]), chat(client, stop=[stop], off=True)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert isinstance(drafters(answer), list)


def test_logprobs(client: OpenAI) -> None:
    """One entry per token of the answer, with the values of no speculation."""
    answer, plain = (chat(client, logprobs=True, top_logprobs=3, off=off) for off in (False, True))
    assert drafted(answer) > 0
    entries, expected = answer.choices[0].logprobs.content, plain.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries).startswith(answer.choices[0].message.content)
    assert [entry.token for entry in entries] == [entry.token for entry in expected]
    assert len(entries) == answer.usage.completion_tokens
    for entry, reference in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(reference.logprob, abs=1e-3)
        assert [top.token for top in entry.top_logprobs] == [top.token for top in reference.top_logprobs]


@pytest.mark.parametrize("stream", [False, True])
def test_json_schema(client: OpenAI, *, stream: bool) -> None:
    """Drafts obey the grammar: what comes out fits the schema, and is what no speculation gives."""
    messages = [{"role": "user", "content": "Name a city and its population as JSON."}]
    options = {"response_format": SCHEMA, "max_tokens": 60}
    plain = chat(client, messages, off=True, **options).choices[0].message.content
    if stream:
        chunks = list(chat(client, messages, stream=True, **options))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        answer = chat(client, messages, **options)
        assert drafted(answer) > 0
        text = answer.choices[0].message.content
    assert text == plain
    assert set(json.loads(text)) == {"name", "population"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls(client: OpenAI, choice: Any, *, stream: bool) -> None:
    """A call of the tool with arguments of its schema, as without speculation."""
    options = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 80}
    plain = chat(client, WEATHER, off=True, **options).choices[0].message.tool_calls[0].function
    if stream:
        name = arguments = ""
        for chunk in chat(client, WEATHER, stream=True, **options):
            for call in chunk.choices[0].delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    else:
        answer = chat(client, WEATHER, **options)
        (call,) = answer.choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
    assert name == plain.name == "get_weather"
    assert json.loads(arguments) == json.loads(plain.arguments)
    assert set(json.loads(arguments)) == {"city"}


def test_tools_that_the_model_may_leave(client: OpenAI) -> None:
    """`auto` goes through vLLM's tool parser; call or text, it is what no speculation gives."""
    answer, plain = (
        chat(client, WEATHER, tools=[TOOL], tool_choice="auto", off=off) for off in (False, True)
    )
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert len(answer.choices[0].message.tool_calls or []) == len(plain.choices[0].message.tool_calls or [])


def test_completions_of_several_prompts(client: OpenAI) -> None:
    """A list of prompts: an answer each, in order, and one report for all of them."""
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "logprobs": 2, "echo": True}
    prompts = ["The capital of France is", "One, two, three,"]
    answer = client.completions.create(model=MODEL, prompt=prompts, **options)
    plain = client.completions.create(model=MODEL, prompt=prompts, extra_body=OFF, **options)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in plain.choices]
    assert all(choice.text.startswith(prompt) for choice, prompt in zip(answer.choices, prompts, strict=True))
    assert answer.usage == plain.usage
    assert drafted(answer) > 0
    assert answer.choices[0].logprobs is not None


def test_completions_stream(client: OpenAI) -> None:
    """Text arrives in pieces; the last chunk says who drafted."""
    options: dict[str, Any] = {"model": MODEL, "prompt": "The sea is", "max_tokens": 24, "temperature": 0}
    *chunks, last = client.completions.create(stream=True, stream_options={"include_usage": True}, **options)
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == client.completions.create(**options).choices[0].text
    assert drafted(last) > 0


def test_responses(client: OpenAI) -> None:
    """The responses API without a memory: the same text as the chat, streamed or not."""
    options: dict[str, Any] = {
        "model": MODEL,
        "input": SEA[0]["content"],
        "max_output_tokens": 40,
        "temperature": 0,
    }
    answer = client.responses.create(**options)
    assert answer.output_text == chat(client).choices[0].message.content
    assert drafted(answer) > 0
    events = list(client.responses.create(stream=True, **options))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == answer.output_text
    final: Any = events[-1]
    assert drafted(final.response) > 0


def test_predicted_outputs(client: OpenAI, server: Server) -> None:
    """A prediction that comes true is accepted, one that does not is rejected; the answer is the same.

    Each from a tenant of its own: a tenant's own history would draft what it has answered before.
    """
    text = chat(client, off=True).choices[0].message.content
    right: Any = {"type": "content", "content": text}
    parts: Any = {"type": "content", "content": [{"type": "text", "text": text}]}
    wrong: Any = {"type": "content", "content": "def main():\n    return 0\n" * 5}
    for tenant, given in (("right", right), ("parts", parts)):
        answer = chat(server.newcomer(tenant), prediction=given)
        assert answer.choices[0].message.content == text
        details = answer.usage.completion_tokens_details
        # Other arms draft where they promise more, so not every token counts.
        assert details.accepted_prediction_tokens >= 5
        assert details.rejected_prediction_tokens <= 8
        predicted = next(row for row in drafters(answer) if row["arm"] == "prediction")
        assert predicted["accepted"] == details.accepted_prediction_tokens
    refuted = chat(server.newcomer("wrong"), prediction=wrong)
    assert refuted.choices[0].message.content == text
    assert refuted.usage.completion_tokens_details.accepted_prediction_tokens <= 2
    streamed = server.newcomer("streamed")
    *_, last = chat(streamed, prediction=right, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details.accepted_prediction_tokens >= 5
    unused = chat(client, prediction=right, off=True)
    assert unused.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert chat(client).usage.completion_tokens_details is None


@pytest.mark.parametrize(
    "extra", [{"min_p": 0.3, "seed": 3, "temperature": 1.0}, {"logit_bias": {"100": -100.0}}]
)
def test_parameters_that_drafts_cannot_have(client: OpenAI, extra: dict[str, Any]) -> None:
    """Served without speculation, and saying so."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=SEA, max_tokens=16, extra_body=extra
    )
    assert raw.headers["x-adaptive-drafter"] == "off"
    assert drafters(raw.parse()) == []


@pytest.mark.parametrize(
    "extra",
    [
        {"bad_words": ["sea", " sea", " ocean"]},
        {"min_tokens": 30, "stop": ["a"]},
        {"allowed_token_ids": list(range(200, 900))},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"ignore_eos": True, "max_tokens": 48},
        {"stop_token_ids": [30]},
        {"prompt_logprobs": 1},
        {"return_token_ids": True},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_vllms_own_parameters_speculate(client: OpenAI, extra: dict[str, Any]) -> None:
    """What vLLM does apply to drafts gives the answer of no speculation."""
    answer, plain = (chat(client, extra_body=extra, off=off) for off in (False, True))
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert answer.usage == plain.usage


def test_models_and_tokens(client: OpenAI, server: Server) -> None:
    """The model under its served name; text to tokens and back."""
    assert [model.id for model in client.models.list()] == [MODEL]
    tokens = server.post("/tokenize", {"model": MODEL, "prompt": "the sea"}).json()["tokens"]
    assert server.post("/detokenize", {"model": MODEL, "tokens": tokens}).json()["prompt"] == "the sea"
