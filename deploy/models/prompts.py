"""Broad prompts: topics x templates, general Python, SQL, JSON and arithmetic. Deterministic for a seed."""

from __future__ import annotations

import dataclasses
import random

from deploy.models.topics import words

HELD_OUT_EVERY = (
    9  # topics, code tasks, ... with this index modulo go to the held-out prompts, never to training
)
HELD_OUT_INDEX = 4
SHARES = {"chat": 0.56, "code": 0.19, "sql": 0.04, "json": 0.08, "call": 0.05, "sum": 0.08}


@dataclasses.dataclass(frozen=True)
class BroadPrompt:
    """One conversation to be: perhaps a system message, a question, perhaps a follow-up question."""

    kind: str
    system: str | None
    question: str
    follow_up: str | None


def _part(items: tuple[str, ...], *, held_out: bool) -> list[str]:
    return [item for i, item in enumerate(items) if (i % HELD_OUT_EVERY == HELD_OUT_INDEX) == held_out]


class PromptSource:
    """Draws prompts; held-out ones share templates with training, but no topic, task, table or entity."""

    def __init__(self, seed: int, *, held_out: bool = False) -> None:
        self._random = random.Random(seed)  # noqa: S311  # sampling, not secrets
        self._topics = _part(words("topics"), held_out=held_out)
        self._code = _part(words("code_actions"), held_out=held_out)
        self._tables = _part(words("tables"), held_out=held_out)
        self._entities = _part(words("entities"), held_out=held_out)
        self._operations = _part(words("operations"), held_out=held_out)

    def draw(self, count: int) -> list[BroadPrompt]:
        """`count` prompts in the shares of SHARES."""
        kinds = self._random.choices(list(SHARES), weights=list(SHARES.values()), k=count)
        return [self._one(kind) for kind in kinds]

    def _one(self, kind: str) -> BroadPrompt:
        pick = self._random.choice
        number = self._random.randint
        values = {
            "t": pick(self._topics), "u": pick(self._topics), "a": pick(words("audiences")),
            "c": pick(self._code),
            "s": pick(self._tables), "r": pick(self._tables), "e": pick(self._entities),
            "o": pick(self._operations), "p": pick(self._operations), "n": pick(words("names")),
            "m": pick(words("names")), "g": pick(words("things")), "x": number(2, 30), "y": number(2, 12),
            "z": number(2, 9), "w": number(40, 400),
        }  # fmt: skip
        asks = {
            "chat": words("asks"), "code": words("code_asks"), "sql": words("sql_asks"),
            "json": words("json_asks"), "call": words("call_asks"), "sum": words("sums"),
        }  # fmt: skip
        question = pick(asks[kind]).replace("\\n", "\n").format(**values)
        if kind == "sum":
            question = " ".join((question, pick(words("sum_endings")))).strip()
        system = pick(words("systems")) if self._random.random() < 0.25 else None
        follow_up = pick(words("follow_ups")).format(**values) if self._random.random() < 0.4 else None
        return BroadPrompt(kind, system, question, follow_up)
