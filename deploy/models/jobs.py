"""Stage 1 (CPU): prompts to token ids, in one file that the GPU stage reads without a tokenizer."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from deploy.models.generate import Job
from deploy.models.prompts import BroadPrompt, PromptSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

TEMPERATURES = (0.2, 0.5, 0.6, 0.7, 0.8, 1.0)
TRAIN_SEED, EVALUATION_SEED = 1, 2
TURN_LIMIT = 256
EVALUATION_LIMIT = 224


def _ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    encoded: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return encoded


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> str:
    """Chat template with the assistant's turn opened."""
    text: str = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    return text


def _messages(prompt: BroadPrompt) -> list[dict[str, str]]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": prompt.question}]


def training_jobs(tokenizer: PreTrainedTokenizerBase, count: int) -> list[Job]:
    """Jobs over broad prompts, at mixed temperatures; two turns where the prompt has a follow-up question."""
    prompts = PromptSource(TRAIN_SEED).draw(count)
    heads = _ids(tokenizer, [render(tokenizer, _messages(prompt)) for prompt in prompts])
    turn = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    tails = _ids(tokenizer, [turn.format(prompt.follow_up) if prompt.follow_up else "" for prompt in prompts])
    pick = random.Random(TRAIN_SEED).choice  # noqa: S311  # sampling, not secrets
    return [Job(head, TURN_LIMIT, pick(TEMPERATURES), tail) for head, tail in zip(heads, tails, strict=True)]


def fit(job: Job, slots: int) -> Job:
    """Bound the answers so that two conversations of one turn, or one of two turns, fill a row of `slots`."""
    used = len(job.prompt) + len(job.follow_up)
    room = (slots - used - 8) // 2 if job.follow_up else slots // 2 - used
    return dataclasses.replace(job, limit=max(32, room))


def broad_evaluation(tokenizer: PreTrainedTokenizerBase, count: int) -> list[list[int]]:
    """Held-out broad prompts (topics, tasks and entities that training never saw)."""
    prompts = PromptSource(EVALUATION_SEED, held_out=True).draw(count)
    return _ids(tokenizer, [render(tokenizer, _messages(prompt)) for prompt in prompts])


def save_jobs(path: Path, sets: dict[str, list[Job]]) -> None:
    """Write named job lists as flat arrays."""
    tensors: dict[str, Tensor] = {}
    for name, jobs in sets.items():
        flat = [token for job in jobs for token in (*job.prompt, *job.follow_up)]
        tensors[f"{name}.tokens"] = torch.tensor(flat, dtype=torch.int32)
        shape = [(len(job.prompt), len(job.follow_up), job.limit) for job in jobs]
        tensors[f"{name}.shape"] = torch.tensor(shape, dtype=torch.int32)
        tensors[f"{name}.temperature"] = torch.tensor([job.temperature for job in jobs])
    save_file(tensors, path)


def load_jobs(path: Path) -> dict[str, list[Job]]:
    """Read what save_jobs wrote."""
    sets: dict[str, list[Job]] = {}
    with safe_open(path, framework="pt") as file:
        for name in sorted({key.rsplit(".", 1)[0] for key in file.keys()}):  # noqa: SIM118  # safe_open is no mapping
            tokens = file.get_tensor(f"{name}.tokens").tolist()
            temperatures = file.get_tensor(f"{name}.temperature").tolist()
            jobs, at = [], 0
            for (head, tail, limit), temperature in zip(
                file.get_tensor(f"{name}.shape").tolist(), temperatures, strict=True
            ):
                middle, end = at + head, at + head + tail
                jobs.append(Job(tokens[at:middle], limit, temperature, tokens[middle:end]))
                at = end
            sets[name] = jobs
    return sets
