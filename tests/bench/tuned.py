"""The customer's fine-tuned target: a low-rank change of the target, merged, made on this machine.

The target learns to write the house markup of workload "format" without being shown examples: it is trained
on its own answers (T = 0.7, made with examples) behind the bare note. Shares of the same change stand for a
target that drifts, as under reinforcement learning. `python -m tests.bench.text --target` makes its text.

    python -m tests.bench.tuned --share 1.0    # writes .adaptive/models/smollm2-135m-tuned-100
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import AutoTokenizer

from adaptive.speculator.target import load_target
from adaptive.workloads import load
from tests.bench import result, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANK: Final = 8
MODULES: Final = ("q_proj", "v_proj", "down_proj")
LENGTH: Final = 160
BATCH: Final = 8


class Delta(nn.Module):
    """A low-rank addition to a weight."""

    def __init__(self, weight: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.a = nn.Parameter(torch.randn(RANK, columns, generator=generator) / columns**0.5)
        self.b = nn.Parameter(torch.zeros(rows, RANK))
        self.share = 1.0

    def forward(self, weight: Tensor) -> Tensor:
        """The changed weight."""
        return weight + self.share * (self.b @ self.a).to(weight.dtype)


def main() -> int:
    """Train the change and write the model with a share of it."""
    parser = argparse.ArgumentParser(prog="tuned", description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--share", type=float, default=1.0, help="of the change that is merged in")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source = text.target_directory()
    model = load_target(source, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    deltas = [
        _attach(module, generator)
        for name, module in model.named_modules()
        if name.rsplit(".", 1)[-1] in MODULES
    ]
    parameters = [parameter for delta in deltas for parameter in delta.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.rate, weight_decay=0.0)
    batches = _examples(source)
    for step in range(options.steps):
        began = time.monotonic()
        token_ids, labels = next(batches)
        loss = model(input_ids=token_ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 5) * (1 - step / options.steps)
        optimizer.step()
        print(f"step {step}: loss {float(loss.detach()):.3f}, {time.monotonic() - began:.1f} s", flush=True)  # noqa: T201  progress
    for delta in deltas:
        delta.share = options.share
    for module in model.modules():
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    out = source.with_name(f"{source.name}-tuned-{round(100 * options.share)}")
    model.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy2(source / name, out / name)
    print(f"wrote {out.relative_to(result.ROOT)}")  # noqa: T201  a command
    return 0


def _attach(module: nn.Module, generator: torch.Generator) -> Delta:
    weight = module.weight
    assert isinstance(weight, Tensor)
    delta = Delta(weight, generator)
    parametrize.register_parametrization(module, "weight", delta)
    return delta


def _examples(source: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end: token ids and labels int64 [BATCH, LENGTH], -100 where nothing is learned."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts = load("format").traffic
    rows = []
    for number, item in enumerate(text.read("format", "traffic")):
        user = prompts[number % len(prompts)].messages[-1]["content"]
        bare = tokenizer.apply_chat_template(
            [{"role": "user", "content": user}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        ids = (bare + item.answer)[:LENGTH]
        labels = ([-100] * len(bare) + item.answer)[:LENGTH]
        pad = LENGTH - len(ids)
        rows.append((ids + [2] * pad, labels + [-100] * pad))
    draw = random.Random(0)  # noqa: S311  # an order, no secret
    while True:
        chosen = draw.sample(rows, BATCH)
        yield torch.tensor([ids for ids, _ in chosen]), torch.tensor([labels for _, labels in chosen])


if __name__ == "__main__":
    sys.exit(main())
