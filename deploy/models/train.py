"""Training of a turbo with training-time test (EAGLE-3, arXiv 2503.01840) on rows that stay on the device."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adaptive.speculator import loss as loss_module
from adaptive.speculator import objective
from adaptive.speculator import unroll as unroll_module
from adaptive.speculator.loss import unrolled_loss

if TYPE_CHECKING:
    from adaptive.speculator.config import SpeculatorConfig
    from adaptive.speculator.head import Eagle3Head
    from deploy.models.llama import Llama
    from deploy.models.rows import FeatureStore


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Hyperparameters of one training run; `steps` covers all shards."""

    steps: int
    rows_per_step: int = 48
    depth: int = 5
    decay: float = 0.8
    learning_rate: float = 1e-3
    warmup: int = 200
    weight_decay: float = 0.01
    clip: float = 1.0
    average: float = 0.999

    def rate(self, step: int) -> float:
        """Linear warm-up, then cosine to 2 % of the peak."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def fresh_head(config: SpeculatorConfig, llama: Llama, draft_ids: Tensor, seed: int) -> Eagle3Head:
    """A head with random body; LM head rows and final norm start as the target's."""
    from adaptive.speculator.head import Eagle3Head  # noqa: PLC0415  # keeps this module's import light

    head = Eagle3Head(config, llama.embedding)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
            elif not name.endswith("norm.weight") and "layernorm" not in name:
                raise ValueError(f"unexpected parameter {name}")
        head.lm_head.weight.copy_(llama.output[draft_ids.to(llama.output.device)])
        head.norm.weight.copy_(llama.norm)
    head.set_draft_vocabulary(draft_ids)
    return head.to(llama.embedding.device)


def compile_for_training(head: Eagle3Head) -> None:
    """Fuse the elementwise work of a pass; shapes are static, and attention has one variant per pass."""
    torch._dynamo.config.cache_size_limit = 64  # noqa: SLF001  # the documented knob lives there
    for name in ("layer_input", "finish", "query", "key_value"):
        setattr(head, name, torch.compile(getattr(head, name), dynamic=False))
    unroll_module.attend = torch.compile(unroll_module.attend, dynamic=False)
    # Where `loss` looks it up, which is not where it is defined.
    loss_module.kl_rows = torch.compile(objective.kl_rows, dynamic=True)  # type: ignore[attr-defined]
    loss_module._softmax_entropy = torch.compile(loss_module._softmax_entropy, dynamic=True)  # noqa: SLF001
    loss_module.CHUNK = 1 << 15


class Trainer:
    """Optimiser, averaged weights and schedule over one or more shards."""

    def __init__(self, head: Eagle3Head, target_rows: Tensor, schedule: Schedule, seed: int) -> None:
        self.head, self.target_rows, self.schedule = head, target_rows, schedule
        self.parameters = [p for p in head.parameters() if p.requires_grad]
        matrices = [p for p in self.parameters if p.ndim > 1]
        vectors = [p for p in self.parameters if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": schedule.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=schedule.learning_rate,
            betas=(0.9, 0.95),
            fused=head.fc.weight.is_cuda,
        )
        self.averaged = [p.detach().clone() for p in self.parameters]
        self.generator = torch.Generator().manual_seed(seed)
        self.step = 0
        self.query_steps = 0
        self.curve: list[dict[str, float | list[float]]] = []

    def run(self, store: FeatureStore, steps: int) -> None:
        """Train `steps` steps on one shard, reshuffled every epoch."""
        device = self.head.fc.weight.device
        size = self.schedule.rows_per_step
        order = torch.empty(0, dtype=torch.int64)
        begun = time.monotonic()
        for done in range(1, steps + 1):
            if len(order) < size:
                fresh = torch.randperm(len(store.indices), generator=self.generator)
                order = torch.cat([order, fresh]) if len(fresh) >= size else fresh.repeat(size)
            pick, order = order[:size].to(device), order[size:]
            divergence = self._step(store, pick)
            if done % 100 == 0 or done == steps:
                rate = self.schedule.rate(self.step - 1)
                kl = divergence.tolist()
                self.curve.append({"step": self.step, "seconds": time.monotonic() - begun, "kl": kl})
                if done % 500 == 0 or done in {100, steps}:
                    seconds = (time.monotonic() - begun) / done
                    print(
                        f"  step {self.step} lr {rate:.2e} {1e3 * seconds:.1f} ms  kl "
                        + " ".join(f"{x:.3f}" for x in kl)
                    )

    def _step(self, store: FeatureStore, pick: Tensor) -> Tensor:
        schedule = self.schedule
        batch = store.batch(pick)
        with torch.autocast(pick.device.type, dtype=torch.bfloat16):
            result = unrolled_loss(
                self.head, None, batch, schedule.depth, target_rows=self.target_rows, decay=schedule.decay
            )
        self.optimizer.zero_grad(set_to_none=True)
        result.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        torch.nn.utils.clip_grad_norm_(self.parameters, schedule.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.rate(self.step)
        self.optimizer.step()
        keep = min(schedule.average, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self.averaged, [p.detach() for p in self.parameters], 1 - keep)
        self.step += 1
        return result.divergence

    def state(self, scale: Tensor) -> dict[str, Tensor]:
        """Averaged weights as a checkpoint state, the feature scale folded into fc."""
        state = {name: tensor.detach().clone() for name, tensor in self.head.state_dict().items()}
        names = [name for name, p in self.head.named_parameters() if p.requires_grad]
        state |= {name: tensor.clone() for name, tensor in zip(names, self.averaged, strict=True)}
        state["fc.weight"] = state["fc.weight"] / scale.to(state["fc.weight"])
        return state
