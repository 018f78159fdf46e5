"""What a workload consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


class Message(TypedDict):
    """One chat message as the OpenAI API takes it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request.

    Attributes:
        key: Stable and unique within its workload.
        messages: The chat so far; ends with the user's turn.
        max_tokens: Suggested limit of the answer, in target tokens.
    """

    key: str
    messages: tuple[Message, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """A tenant's requests in a fixed order and split.

    Attributes:
        name: Workload name.
        traffic: What the tenant sends while its drafter learns.
        probe: What measurements send: never trained on, and no subject of it occurs in the traffic.
    """

    name: str
    traffic: tuple[Prompt, ...]
    probe: tuple[Prompt, ...]


def chat(system: str | None, shots: tuple[tuple[str, str], ...], user: str) -> tuple[Message, ...]:
    """A chat of an optional system message, worked examples as earlier turns, and the user's request."""
    messages: list[Message] = [] if system is None else [Message(role="system", content=system)]
    for question, answer in shots:
        messages += [Message(role="user", content=question), Message(role="assistant", content=answer)]
    return (*messages, Message(role="user", content=user))


def ask(key: str, text: str, max_tokens: int) -> Prompt:
    """A single question without a system message."""
    return Prompt(key=key, messages=chat(None, (), text), max_tokens=max_tokens)
