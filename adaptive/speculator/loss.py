"""Loss of an unrolled drafter over the draft vocabulary, mean of reachable queries."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptive.speculator.objective import Objective, acceptance_rows, kl_rows, row_products
from adaptive.speculator.unroll import unroll

if TYPE_CHECKING:
    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import Batch

CHUNK = 256  # rows of logits held at once: 256 x 16384 float32 stay in cache (on CPU 40 % faster than 4096)


@dataclasses.dataclass(frozen=True, eq=False)
class LossResult:
    """`loss` is what to differentiate; `divergence` [depth] each pass's mean (KL: nats)."""

    loss: Tensor
    divergence: Tensor


class _HeadDivergence(torch.autograd.Function):
    """Sum over rows of weight * objective(teacher, softmax(hidden @ head.T)), without keeping the logits.

    The gradient with respect to the logits is formed while they are at hand, so backward is two scalings.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        teacher: Tensor,
        entropy: Tensor,
        row_weight: Tensor,
        objective: Objective,
    ) -> Tensor:
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_head = torch.zeros(head.shape, device=head.device) if ctx.needs_input_grad[1] else None
        cast = head.to(hidden.dtype)
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            rows = (hidden[part] @ cast.T, teacher[part], entropy[part], row_weight[part])
            value, grad = kl_rows(*rows) if objective is Objective.KL else acceptance_rows(*rows, objective)
            total += value
            if d_hidden is not None:
                d_hidden[part] = grad @ cast
            if d_head is not None:
                d_head += (grad.T @ hidden[part]).float()
        ctx.save_for_backward(d_hidden, d_head)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        d_hidden, d_head = ctx.saved_tensors
        scale = grads[0]
        return (
            None if d_hidden is None else d_hidden * scale.to(d_hidden.dtype),
            None if d_head is None else d_head * scale,
            None,
            None,
            None,
            None,
        )


@torch.no_grad()
def teacher_distribution(teacher_hidden: Tensor, target_rows: Tensor) -> tuple[Tensor, Tensor]:
    """The target's distribution over the draft vocabulary.

    Args:
        teacher_hidden: [N, H], the target's last hidden states.
        target_rows: [D, H], rows of the target's LM head for the draft vocabulary, in draft order.

    Returns:
        probabilities [N, D] in teacher_hidden's dtype, entropy float32 [N] in nats.
    """
    probabilities = teacher_hidden.new_empty(len(teacher_hidden), len(target_rows))
    entropy = torch.empty(len(teacher_hidden), device=teacher_hidden.device)
    rows = target_rows.to(teacher_hidden.dtype)
    for start in range(0, len(teacher_hidden), CHUNK):
        part = slice(start, start + CHUNK)
        probabilities[part], entropy[part] = _softmax_entropy(teacher_hidden[part] @ rows.T)
    return probabilities, entropy


def _softmax_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits.float() if logits.dtype != torch.float32 else logits.clone()
    log_p.sub_(log_p.amax(-1, keepdim=True))
    p = log_p.exp()
    norm = p.sum(-1, keepdim=True)
    p.div_(norm)
    return p.to(logits.dtype), norm.log().squeeze(-1) - row_products(p, log_p)


def unrolled_loss(
    head: Eagle3Head,
    adapter: Adapter | None,
    batch: Batch,
    depth: int,
    *,
    target_rows: Tensor,
    weight: float | Tensor = 1.0,
    decay: float = 0.8,
    objective: Objective = Objective.KL,
    rejected_weight: float = 0.0,
) -> LossResult:
    """Distance to the target over `depth` passes along the true continuation; pass j counts decay**(j-1).

    Queries whose true token lies outside the draft vocabulary are left out: there a draft is rejected
    whatever it is, and what is left of the target's distribution would only be noise.

    Args:
        head: the drafter; its LM head gets a gradient only if it requires one.
        adapter: deltas to train, or None.
        batch: packed rows, in the dtype and on the device of the head.
        depth: draft passes, at least 1.
        target_rows: [D, H], see teacher_distribution.
        weight: the adapter's weight.
        decay: how much less each later pass counts; later drafts matter only if earlier ones were accepted.
        objective: what is measured at each position.
        rejected_weight: how much more a position counts whose draft was rejected while serving.
    """
    keep = ((batch.span >= 0) & head.t2d[batch.labels]).flatten().nonzero().squeeze(-1)
    teacher, entropy = teacher_distribution(batch.teacher_hidden.flatten(0, 1)[keep], target_rows)
    emphasis = 1.0 + rejected_weight * batch.rejected.flatten()[keep].float()
    loss = torch.zeros((), device=keep.device)
    divergence = []
    for j, (hidden, reachable) in enumerate(unroll(head, adapter, batch, depth, weight)):
        usable = reachable.flatten()[keep].float() * emphasis
        row_weight = usable / usable.sum().clamp(min=1.0)
        mean = _HeadDivergence.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            hidden.flatten(0, 1)[keep], head.lm_head.weight, teacher, entropy, row_weight, objective
        )
        loss = loss + decay**j * mean
        divergence.append(mean.detach())
    total = sum(decay**j for j in range(depth))
    return LossResult(loss / total, torch.stack(divergence))
