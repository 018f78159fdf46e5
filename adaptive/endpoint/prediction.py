"""Predicted Outputs: the client's `prediction` as draft tokens, as the OpenAI API defines the field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from adaptive.endpoint.errors import EndpointError

if TYPE_CHECKING:
    from pathlib import Path


class Tokenizer(Protocol):
    """Turns answer text into the target's tokens."""

    def __call__(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens around it; thread-safe."""


def take_prediction(body: dict[str, Any]) -> str | None:
    """Remove `prediction` and return its text; None where there is none.

    Raises:
        EndpointError: 400 naming the field.
    """
    prediction = body.pop("prediction", None)
    if prediction is None:
        return None
    if not isinstance(prediction, dict):
        raise _invalid("prediction", 'an object like {"type": "content", "content": "…"}', prediction)
    unknown = sorted(set(prediction) - {"type", "content"})
    if unknown:
        raise EndpointError(
            400,
            f"prediction.{unknown[0]} is unknown: use type and content",
            parameter=f"prediction.{unknown[0]}",
            code="unknown_field",
        )
    if prediction.get("type") != "content":
        raise _invalid("prediction.type", '"content"', prediction.get("type"))
    return _text(prediction.get("content"))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _invalid("prediction.content", "a string or a non-empty array of text parts", content)
    for index, part in enumerate(content):
        field = f"prediction.content[{index}]"
        if not isinstance(part, dict):
            raise _invalid(field, 'an object like {"type": "text", "text": "…"}', part)
        if part.get("type") != "text":
            raise _invalid(f"{field}.type", '"text"', part.get("type"))
        if not isinstance(part.get("text"), str):
            raise _invalid(f"{field}.text", "a string", part.get("text"))
    return "".join(part["text"] for part in content)


def _invalid(field: str, wanted: str, found: Any) -> EndpointError:
    shown = json.dumps(found)[:80]
    return EndpointError(400, f"{field} must be {wanted}, not {shown}", parameter=field, code="invalid_type")


def target_tokenizer(target: Path) -> Tokenizer:
    """The tokenizer of a target directory (its tokenizer.json)."""
    from tokenizers import Tokenizer as FastTokenizer  # noqa: PLC0415  comes with the serving extras

    fast = FastTokenizer.from_file(str(target / "tokenizer.json"))
    fast.no_truncation()
    fast.no_padding()

    def tokenize(text: str) -> list[int]:
        ids: list[int] = fast.encode(text, add_special_tokens=False).ids
        return ids

    return tokenize
