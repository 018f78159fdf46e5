"""Text of the target itself: continuous batching with the scheduler on the GPU, one CUDA graph a step.

Every row works through jobs: read the prompt one token a step (no separate prefill), sample an answer,
optionally read a follow-up question and sample a second answer, take the next job. Nothing returns to the
host before the end.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploy.models.llama import Runner


@dataclasses.dataclass(frozen=True)
class Job:
    """A tokenised prompt, up to `limit` answer tokens at `temperature` (0: greedy), perhaps a second turn.

    `follow_up` begins after the end-of-turn token of the first answer and ends where the second begins.
    """

    prompt: Sequence[int]
    limit: int
    temperature: float
    follow_up: Sequence[int] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """Generated sequences on the host.

    tokens int32 [N, L], sampled bool [N, L] (true where the target chose the token), length int64 [N].
    """

    tokens: Tensor
    sampled: Tensor
    length: Tensor

    @property
    def answer_tokens(self) -> int:
        """Tokens that the target chose."""
        return int(self.sampled.sum())


class _State:
    """Everything a step reads and writes; job N is a dump for rows that ran out of work."""

    def __init__(
        self, runner: Runner, jobs: Sequence[Job], rows: int, length: int, end: int, device: str
    ) -> None:
        n = len(jobs)
        self.runner, self.end, self.count, self.length = runner, end, n, length
        prompt_length = torch.tensor([len(job.prompt) for job in jobs] + [1])
        follow_length = torch.tensor([len(job.follow_up) for job in jobs] + [0])
        width = max(int(follow_length.max()), 1)
        tokens = torch.full((n + 1, length + width), end, dtype=torch.int32)
        follow = torch.full((n + 1, width), end, dtype=torch.int32)
        for i, job in enumerate(jobs):
            tokens[i, : len(job.prompt)] = torch.tensor(job.prompt, dtype=torch.int32)
            if job.follow_up:
                follow[i, : len(job.follow_up)] = torch.tensor(job.follow_up, dtype=torch.int32)
        self.tokens, self.follow = tokens.to(device), follow.to(device)
        self.sampled = torch.zeros(n + 1, length + width, dtype=torch.bool, device=device)
        self.prompt_length, self.follow_length = prompt_length.to(device), follow_length.to(device)
        self.limit = torch.tensor([job.limit for job in jobs] + [1], device=device)
        self.temperature = torch.tensor([job.temperature for job in jobs] + [1.0], device=device)
        self.final = torch.zeros(n + 1, dtype=torch.int64, device=device)
        self.job = torch.arange(rows, device=device).clamp(max=n)
        self.position = torch.zeros(rows, dtype=torch.int64, device=device)
        self.forced = self.prompt_length[self.job].clone()
        self.chosen = torch.zeros(rows, dtype=torch.int64, device=device)
        self.turn = torch.zeros(rows, dtype=torch.int64, device=device)
        self.next_job = torch.full((), rows, dtype=torch.int64, device=device)
        llama = runner.llama
        self.cache = torch.zeros(
            len(llama.layers), 2, rows, llama.kv_heads, length, llama.head_dim,
            device=device, dtype=llama.embedding.dtype,
        )  # fmt: skip

    @torch.no_grad()
    def step(self) -> None:
        """Decode one token per row and move every row on."""
        job, at = self.job, self.position
        logits = self.runner.decode(self.tokens[job, at].long(), at, self.cache).float()
        noise = torch.empty_like(logits).exponential_().clamp_(min=1e-30).log_().neg_()
        choice = noise.mul_(self.temperature[job, None]).add_(logits).argmax(-1)
        following = at + 1
        sampling = following >= self.forced
        self.chosen += sampling
        spent = sampling & ((self.chosen >= self.limit[job]) | (following >= self.length - 1))
        ended = sampling & (choice == self.end)
        over = ended | spent
        room = following + self.follow_length[job] + 2 < self.length
        again = over & (self.turn == 0) & (self.follow_length[job] > 0) & room
        done = over & ~again
        cut = again & ~ended  # the turn is cut short: its end token is ours, not the target's
        written = torch.where(cut, self.end, choice)
        self.tokens[job, following] = torch.where(sampling, written.int(), self.tokens[job, following])
        self.sampled[job, following] |= sampling & ~cut
        width = self.follow.shape[1]
        columns = (following[:, None] + 1 + torch.arange(width, device=at.device)).clamp(
            max=self.tokens.shape[1] - 1
        )
        self.tokens[job[:, None], columns] = torch.where(
            again[:, None], self.follow[job], self.tokens[job[:, None], columns]
        )
        self.forced.copy_(torch.where(again, following + 1 + self.follow_length[job], self.forced))
        self.chosen.masked_fill_(over, 0)
        self.turn += again
        self.final[job] = torch.where(done, following + 1, self.final[job])
        real = done & (job < self.count)
        rank = real.cumsum(0) - 1
        fresh = torch.where(real, (self.next_job + rank).clamp(max=self.count), job)
        self.next_job += real.sum()
        self.position.copy_(torch.where(done, 0, following))
        self.forced.copy_(torch.where(done, self.prompt_length[fresh], self.forced))
        self.turn.masked_fill_(done, 0)
        self.job.copy_(fresh)


def generate(
    runner: Runner, jobs: Sequence[Job], *, rows: int, length: int, end: int, device: str, report: bool = True
) -> Text:
    """Answer every job; `length` bounds prompt + answers of a sequence, `end` is the end-of-turn token."""
    longest = max(len(job.prompt) + 2 + len(job.follow_up) for job in jobs)
    if longest >= length:
        raise ValueError(
            f"a prompt of {longest} tokens leaves no room in length={length}; raise it or drop the prompt"
        )
    state = _State(runner, jobs, min(rows, len(jobs)), length, end, device)
    begun = time.monotonic()
    step = state.step
    if device != "cpu":
        step = _captured(state)
    steps = 0
    while int(state.next_job) < len(jobs) + len(state.job):
        for _ in range(32):
            step()
        steps += 32
        if report and steps % 1024 == 0:
            taken = min(int(state.next_job), len(jobs))
            print(f"  {time.monotonic() - begun:6.1f} s  {taken}/{len(jobs)} jobs taken")
    text = Text(state.tokens[:-1, :length].cpu(), state.sampled[:-1, :length].cpu(), state.final[:-1].cpu())
    seconds = time.monotonic() - begun
    if report:
        rate = text.answer_tokens / seconds
        print(f"  {text.answer_tokens} answer tokens in {seconds:.1f} s ({rate:.0f}/s), {steps} steps")
    return text


def _captured(state: _State) -> Callable[[], None]:
    """Warm up on another stream, undo what the warm-up did, capture one step."""
    saved = {
        name: value.clone()
        for name, value in vars(state).items()
        if isinstance(value, Tensor) and name != "cache"
    }
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            state.step()
    torch.cuda.current_stream().wait_stream(stream)
    for name, value in saved.items():
        getattr(state, name).copy_(value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        state.step()
    return graph.replay
