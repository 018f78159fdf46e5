"""Walked acceptance of a drafter on greedy answers to a set of prompts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from adaptive.speculator.evaluation import teacher_forced, walk
from deploy.models.generate import generate
from deploy.models.rows import traced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import TracedSequence
    from deploy.models.generate import Job
    from deploy.models.llama import Runner

LOOKAHEAD = 4
EVALUATION_ROOM = 1024


def answers(
    runner: Runner, head: Eagle3Head, items: Sequence[Job], device: str, rows: int = 256
) -> list[TracedSequence]:
    """The target's answers to single-turn jobs, with features."""
    room = max(len(job.prompt) + job.limit for job in items) + 8
    text = generate(
        runner, items, rows=rows, length=min(room, EVALUATION_ROOM), end=2, device=device, report=False
    )
    return traced(text, [len(job.prompt) for job in items], runner, head.config.feature_layers)


def shorten(sequences: Sequence[TracedSequence], answer: int) -> list[TracedSequence]:
    """The same requests cut after `answer` answer tokens."""
    out = []
    for item in sequences:
        end = min(len(item.token_ids), item.answer_start + answer)
        out.append(
            dataclasses.replace(
                item,
                token_ids=item.token_ids[:end],
                features=item.features[:end],
                last_hidden=item.last_hidden[:end],
            )
        )
    return out


def coverage(head: Eagle3Head, sequences: Sequence[TracedSequence]) -> float:
    """Share of answer tokens that are in the draft vocabulary."""
    mask = head.t2d.cpu()
    hits = sum(int(mask[item.token_ids[item.answer_start :]].sum()) for item in sequences)
    return hits / max(1, sum(len(item.token_ids) - item.answer_start for item in sequences))


def measure(runner: Runner, head: Eagle3Head, items: Sequence[Job], device: str) -> dict[str, Any]:
    """Walked tau on whole and on 96-token answers, acceptance per position of 6 drafts, coverage, lengths."""
    return score(head, None, answers(runner, head, items, device))


def score(head: Eagle3Head, adapter: Adapter | None, sequences: Sequence[TracedSequence]) -> dict[str, Any]:
    """The numbers of one drafter on one set of answers."""
    result = walk(head, adapter, sequences, LOOKAHEAD)
    lengths = [len(item.token_ids) - item.answer_start for item in sequences]
    return {
        "tau": round(result.tau, 4),
        "tau_96": round(walk(head, adapter, shorten(sequences, 96), LOOKAHEAD).tau, 4),
        "tau_teacher_forced": round(teacher_forced(head, adapter, sequences, LOOKAHEAD), 4),
        "acceptance_per_position": [
            round(x, 4) for x in walk(head, adapter, sequences, 6).acceptance_per_position
        ],
        "coverage": round(coverage(head, sequences), 4),
        "requests": len(sequences),
        "mean_answer_tokens": round(sum(lengths) / len(lengths), 1),
        "verify_steps": result.verify_steps,
    }
