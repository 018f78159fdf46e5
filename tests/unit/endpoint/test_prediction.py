"""The `prediction` field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.prediction import take_prediction, target_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a text", "a text"),
        ("", ""),
        ([{"type": "text", "text": "a "}, {"type": "text", "text": "text"}], "a text"),
    ],
)
def test_text_and_parts_are_taken(content: Any, text: str) -> None:
    """As the OpenAI API defines it; the field is gone from the body."""
    body = {"model": "m", "prediction": {"type": "content", "content": content}}
    assert take_prediction(body) == text
    assert body == {"model": "m"}


@pytest.mark.parametrize("body", [{}, {"prediction": None}])
def test_no_prediction_is_none(body: dict[str, Any]) -> None:
    """The usual request."""
    assert take_prediction(body) is None
    assert body == {}


@pytest.mark.parametrize(
    ("prediction", "field"),
    [
        ("text", "prediction"),
        (True, "prediction"),
        ([], "prediction"),
        ({}, "prediction.type"),
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": []}, "prediction.content"),
        ({"type": "content", "content": ["a"]}, "prediction.content[0]"),
        ({"type": "content", "content": [{"type": "text", "text": "a"}, {}]}, "prediction.content[1].type"),
        ({"type": "content", "content": [{"type": "text", "text": 1}]}, "prediction.content[0].text"),
        ({"type": "content", "content": "a", "weight": 1}, "prediction.weight"),
    ],
)
def test_a_bad_prediction_names_the_field(prediction: Any, field: str) -> None:
    """400 with the path to what is wrong."""
    with pytest.raises(EndpointError) as raised:
        take_prediction({"prediction": prediction})
    assert (raised.value.status, raised.value.parameter) == (400, field)
    assert raised.value.message.startswith(field)


def test_predictions_are_tokenised_as_answers(tmp_path: Path) -> None:
    """Without the special tokens that a prompt may get, and however long."""
    made = Tokenizer(WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="<s>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.enable_truncation(3)
    made.enable_padding(length=5, pad_id=0)
    made.save(str(tmp_path / "tokenizer.json"))
    assert target_tokenizer(tmp_path)("a b a b") == [1, 2, 1, 2]
