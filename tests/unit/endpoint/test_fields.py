"""The table of fields against the installed vLLM."""

from __future__ import annotations

from typing import Any

import pytest

# vLLM's entry points import each other in circles unless transformers is there first.
from transformers import PreTrainedConfig  # noqa: F401  isort: skip
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)

from adaptive.endpoint.fields import TABLES


@pytest.mark.parametrize(
    ("path", "requests"),
    [
        ("/v1/chat/completions", [ChatCompletionRequest]),
        ("/v1/completions", [CompletionRequest]),
        ("/v1/responses", [ResponsesRequest]),
        ("/tokenize", [TokenizeChatRequest, TokenizeCompletionRequest]),
        ("/detokenize", [DetokenizeRequest]),
    ],
)
def test_every_field_of_vllm_is_decided_on(path: str, requests: list[Any]) -> None:
    """A field that a new vLLM adds fails here until somebody decides; one that it drops fails too."""
    fields = {field for request in requests for field in request.model_fields}
    assert TABLES[path].keys() == fields
