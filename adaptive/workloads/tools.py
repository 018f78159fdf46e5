"""Workload "tools": function-calling prompts of the Berkeley Function Calling Leaderboard, from `bfcl-eval`.

Rows that share a function are kept together, so that the probe's functions never occur in the traffic.
"""

from __future__ import annotations

import json
from typing import Any

from adaptive.models.installed import find_data_file
from adaptive.workloads.prompt import Message, Prompt, Workload
from adaptive.workloads.split import rank, shuffled

_DISTRIBUTION = "bfcl-eval"
_INSTALL = "pip install --no-deps bfcl-eval==2026.3.23"
_CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "simple_java",
    "simple_javascript",
    "live_simple",
)
_SYSTEM = (
    "You are a function-calling assistant. You can call these functions:\n{functions}\n"
    'Answer with the function call as JSON: {{"name": function name, "arguments": {{parameter: value}}}}. '
    "No other text."
)
_MAX_TOKENS = 96
_MAX_CHARACTERS = 2000  # 600 target tokens at the 3.5 characters per token that this JSON has at least
_PROBE_SIZE = 120


def build() -> Workload:
    """1,165 traffic prompts and 120 probe prompts."""
    groups = _group_by_function(_read_rows())
    probe: list[Prompt] = []
    traffic: list[Prompt] = []
    # Large groups (one function with many questions) belong to the traffic: a probe wants variety.
    for group in sorted(groups, key=lambda rows: rank(rows[0]["id"])):
        into_probe = len(group) <= 3 and len(probe) + len(group) <= _PROBE_SIZE
        (probe if into_probe else traffic).extend(_make_prompt(row) for row in group)
    return Workload(name="tools", traffic=shuffled(traffic), probe=shuffled(probe))


def _read_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for category in _CATEGORIES:
        path = find_data_file(_DISTRIBUTION, f"bfcl_eval/data/BFCL_v4_{category}.json", _INSTALL)
        with path.open(encoding="utf-8") as lines:
            rows += [json.loads(line) for line in lines if line.strip()]
    return [row for row in rows if _count_characters(row) <= _MAX_CHARACTERS]


def _count_characters(row: dict[str, Any]) -> int:
    return sum(len(message["content"]) for message in _messages(row))


def _messages(row: dict[str, Any]) -> tuple[Message, ...]:
    """Our system message with the function docs, then the row's turns (its system text, if any, first)."""
    system = _SYSTEM.format(functions=json.dumps(row["function"], ensure_ascii=False))
    turns = [Message(role=turn["role"], content=turn["content"]) for turn in row["question"][0]]
    if turns[0]["role"] == "system":
        system = f"{turns.pop(0)['content']}\n{system}"
    return (Message(role="system", content=system), *turns)


def _make_prompt(row: dict[str, Any]) -> Prompt:
    return Prompt(key=str(row["id"]), messages=_messages(row), max_tokens=_MAX_TOKENS)


def _group_by_function(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Connected components of rows that share a function's name or its description."""
    owner: dict[str, int] = {}
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for index, row in enumerate(rows):
        for function in row["function"]:
            # "math.factorial" and "factorial" are the same subject, as are two names of one description.
            name, description = function["name"].split(".")[-1].lower(), function["description"]
            for mark in (name, description.split(" Note that")[0]):
                parent[root(index)] = root(owner.setdefault(mark, index))
    groups: dict[int, list[dict[str, Any]]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(root(index), []).append(row)
    return list(groups.values())
