"""What a draft position is trained for, row by row of logits, each with its gradient formed by hand.

p is the target's distribution over the draft vocabulary, q the drafter's; acceptance under rejection
sampling is a = sum min(p, q) = 1 - TV(p, q). "LK losses" (arXiv 2602.23881) train on a itself.
"""

from __future__ import annotations

import enum
from typing import Final

import torch
from torch import Tensor

HYBRID_DECAY: Final = 3.0
"""How fast the hybrid turns from KL to TV as a row's acceptance rises: KL's share is exp(-3 a)."""
_LEAST_ACCEPTANCE: Final = 1e-4


class Objective(enum.StrEnum):
    """Loss of a draft position."""

    KL = "kl"
    """KL(p || q)."""
    HYBRID = "hybrid"
    """KL where p and q are far apart, total variation where they are near."""
    ACCEPTANCE = "acceptance"
    """-log a, the negative log acceptance."""


def kl_rows(logits: Tensor, teacher: Tensor, entropy: Tensor, row_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted KL summed over rows, and its gradient with respect to the logits.

    Args:
        logits: [N, D].
        teacher: p [N, D].
        entropy: of p, float32 [N] in nats.
        row_weight: float32 [N].
    """
    # In place: fresh buffers of this size cost a CPU more than the arithmetic (page faults).
    shifted, q, norm = _exponentials(logits)
    p = teacher.float()
    divergence = norm.log().squeeze(-1) - row_products(p, shifted) - entropy
    grad = q.div_(norm).sub_(p).mul_(row_weight[:, None])
    return (divergence * row_weight).sum(), grad.to(logits.dtype)


def acceptance_rows(
    logits: Tensor, teacher: Tensor, entropy: Tensor, row_weight: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """As `kl_rows`, for the objectives that look at acceptance."""
    shifted, q, norm = _exponentials(logits)
    q.div_(norm)
    p = teacher.float()
    acceptance = torch.minimum(p, q).sum(-1).clamp(_LEAST_ACCEPTANCE, 1.0)
    below = q * (q < p)  # only here does more of q raise acceptance
    rise = below - q * below.sum(-1, keepdim=True)  # d acceptance / d logits
    if objective is Objective.ACCEPTANCE:
        value, grad = -acceptance.log(), -rise / acceptance[:, None]
    else:
        share = torch.exp(-HYBRID_DECAY * acceptance)  # a constant to the gradient
        divergence = norm.log().squeeze(-1) - row_products(p, shifted) - entropy
        value = share * divergence + (1 - share) * (1 - acceptance)
        grad = share[:, None] * (q - p) - (1 - share)[:, None] * rise
    return (value * row_weight).sum(), (grad * row_weight[:, None]).to(logits.dtype)


def row_products(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each row, [N, D] and [N, D] to [N], without a buffer of the product."""
    return torch.bmm(a[:, None], b[:, :, None]).flatten()


def _exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits less their row's peak, their exponentials [N, D] and the sum of those [N, 1], float32."""
    shifted = logits.float() if logits.dtype != torch.float32 else logits.clone()
    shifted.sub_(shifted.amax(-1, keepdim=True))
    q = shifted.exp()
    return shifted, q, q.sum(-1, keepdim=True)
