"""Adapter training: AdamW on the low-rank deltas of q, o and the MLP, with checkpoints every few steps."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from adaptive.speculator.adapter import Adapter, AdapterConfig
from adaptive.speculator.loss import unrolled_loss
from adaptive.speculator.objective import Objective
from adaptive.speculator.sequences import pack_step
from learners.memory import PeakMemory
from learners.schedule import learning_rate, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from adaptive.speculator.sequences import TracedSequence
    from learners.drafter import Drafter
    from learners.records import UpdatePlan

_log = structlog.get_logger(__name__)

CHECKPOINT_STEPS: Final = 5
GRADIENT_NORM: Final = 1.0


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained adapter's tensors (float32, by file name) and how training went."""

    tensors: dict[str, Tensor]
    losses: list[float]
    seconds: float
    """Of training itself, over every process that took part."""
    peak_bytes: int = 0
    """Most memory this process held while it trained, the models it has loaded included; 0: not known."""


class _Checkpoint(msgspec.Struct, frozen=True):
    plan: str
    losses: list[float]
    seconds: float


class Trainer:
    """Trains adapters on one drafter.

    A result is a function of the plan and the sequences alone: batches are dealt from the plan's seed, and a
    checkpoint holds all that a step depends on, so a run that was interrupted ends with the same bytes.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter: Final = drafter

    def train(
        self,
        plan: UpdatePlan,
        tokens: Mapping[int, int],
        *,
        load: Callable[[int], TracedSequence],
        warm_start: Mapping[str, Tensor] | None,
        checkpoint: Path,
        on_step: Callable[[int, int], None],
    ) -> Trained:
        """Run an update's steps, going on from `checkpoint` if it belongs to this plan.

        Args:
            plan: What to train.
            tokens: Answer tokens of each of the plan's training requests, by number.
            load: Reads a request's sequence.
            warm_start: Tensors to start from; None starts as turbo (B is zero).
            checkpoint: File to go on from and to write.
            on_step: Called before each step with its index and the number of steps; may raise to stop.

        Raises:
            ArithmeticError: the loss is not finite.
        """
        head = self._drafter.head
        device = head.fc.weight.device
        adapter = Adapter(AdapterConfig(plan.rank), head.config, torch.Generator().manual_seed(plan.seed))
        adapter.to(device)
        if warm_start is not None:
            adapter.load_tensors(warm_start)
        optimizer = torch.optim.AdamW(adapter.parameters(), lr=plan.learning_rate, weight_decay=0.0)
        state = _resume(checkpoint, _identity(plan), adapter, optimizer)
        losses, seconds = list(state.losses), state.seconds
        memory = PeakMemory(device)
        steps = schedule(
            tokens, plan.fresh, token_steps=plan.token_steps, batch_tokens=plan.batch_tokens, seed=plan.seed
        )
        for step in range(len(losses), len(steps)):
            on_step(step, len(steps))
            began = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, len(steps), plan.learning_rate)
            losses.append(self._step(plan, adapter, optimizer, [load(number) for number in steps[step]]))
            seconds += time.monotonic() - began
            if (step + 1) % CHECKPOINT_STEPS == 0 or step + 1 == len(steps):
                _save(checkpoint, _Checkpoint(_identity(plan), losses, seconds), adapter, optimizer)
        tensors = {name: tensor.cpu().clone() for name, tensor in adapter.tensors().items()}
        return Trained(tensors, losses, seconds, memory.peak_bytes())

    def _step(
        self,
        plan: UpdatePlan,
        adapter: Adapter,
        optimizer: torch.optim.Optimizer,
        sequences: list[TracedSequence],
    ) -> float:
        """One optimiser step over the sequences; returns its loss in nats."""
        head = self._drafter.head
        batch = pack_step(sequences).to(head.fc.weight.device, head.fc.weight.dtype)
        result = unrolled_loss(
            head,
            adapter,
            batch,
            plan.unroll_depth,
            target_rows=self._drafter.target_rows,
            objective=Objective(plan.objective),
            rejected_weight=plan.rejected_weight,
        )
        loss = float(result.loss.detach())
        if not math.isfinite(loss):
            raise ArithmeticError(
                f"the training loss is {loss}: lower learning_rate (ADAPTIVE_LEARNING_RATE)"
            )
        optimizer.zero_grad(set_to_none=True)
        result.loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        torch.nn.utils.clip_grad_norm_(adapter.parameters(), GRADIENT_NORM)
        optimizer.step()
        return loss


def _identity(plan: UpdatePlan) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(plan)).hexdigest()


def _save(path: Path, state: _Checkpoint, adapter: Adapter, optimizer: torch.optim.Optimizer) -> None:
    tensors = {}
    for name, parameter in adapter.named_parameters():
        moments = optimizer.state[parameter]
        tensors[f"parameter/{name}"] = parameter.detach()
        tensors[f"first/{name}"] = moments["exp_avg"]
        tensors[f"second/{name}"] = moments["exp_avg_sq"]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, {"state": msgspec.json.encode(state).decode()})
    partial.replace(path)


def _resume(path: Path, plan: str, adapter: Adapter, optimizer: torch.optim.Optimizer) -> _Checkpoint:
    """Restore adapter and optimiser if the checkpoint is this plan's; a damaged one costs a fresh start."""
    fresh = _Checkpoint(plan, [], 0.0)
    try:
        with safe_open(path, framework="pt") as file:
            state = msgspec.json.decode((file.metadata() or {}).get("state", ""), type=_Checkpoint)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except FileNotFoundError:
        return fresh
    except (SafetensorError, msgspec.DecodeError) as error:
        _log.warning("checkpoint left aside", path=path.name, error=str(error))
        return fresh
    if state.plan != plan:
        return fresh
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            parameter.copy_(tensors[f"parameter/{name}"])
            optimizer.state[parameter] = {
                "step": torch.tensor(float(len(state.losses))),
                "exp_avg": tensors[f"first/{name}"].to(parameter.device),
                "exp_avg_sq": tensors[f"second/{name}"].to(parameter.device),
            }
    _log.info("training goes on from its checkpoint", step=len(state.losses))
    return state
