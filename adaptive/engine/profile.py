"""Measures, once at warm-up, what target steps and drafter passes cost on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import torch
from vllm.forward_context import set_forward_context

from adaptive.engine.cost import CostModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptive.engine.runner import AdaptiveCPUModelRunner

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
BUDGET_SECONDS: Final = 4.0
_REPEATS: Final = 3
_ATTENTION_OVERHEAD: Final = 2.0
"""Attention reaches about half of the linear layers' speed; measured steps correct it."""


def profile(runner: AdaptiveCPUModelRunner) -> CostModel:
    """Time forwards of several sizes, attention left out, until the budget is spent.

    Attention is estimated: a layer spends 4 * hidden operations on a (query, context) pair and about
    24 * hidden^2 on a token's linear maps.
    """
    config = runner.vllm_config
    drafter = runner.drafter
    hidden = config.model_config.get_hidden_size()
    dtype = runner.dtype
    started = time.perf_counter()
    target: dict[int, float] = {}
    first: dict[int, float] = {}
    later: dict[int, float] = {}

    for size in SIZES:
        spent = time.perf_counter() - started
        if size > runner.max_num_tokens or (len(target) > 1 and spent > BUDGET_SECONDS):
            break
        ids = torch.zeros(size, dtype=torch.int32, device=runner.device)
        positions = torch.zeros(size, dtype=torch.int64, device=runner.device)
        narrow = torch.zeros(size, drafter.hidden_size, dtype=dtype, device=runner.device)
        features = torch.zeros(size, 3 * hidden, dtype=dtype, device=runner.device)

        def verify(ids: torch.Tensor = ids, positions: torch.Tensor = positions) -> None:
            states, _ = runner.model(
                input_ids=ids, positions=positions, intermediate_tensors=None, inputs_embeds=None
            )
            runner.model.compute_logits(states).argmax(dim=-1)

        def draft(
            rows: int,
            ids: torch.Tensor = ids,
            positions: torch.Tensor = positions,
            states: torch.Tensor = narrow,
        ) -> None:
            last, _ = drafter.model(
                input_ids=ids, positions=positions, inputs_embeds=None, hidden_states=states
            )
            logits = drafter.model.draft_logits(last[:rows]).float()
            logits.max(dim=-1)
            logits.logsumexp(dim=-1)

        def first_pass(size: int = size, features: torch.Tensor = features) -> None:
            draft(max(size // 3, 1), states=drafter.model.combine_hidden_states(features))

        with torch.inference_mode(), set_forward_context(None, config, num_tokens=size):
            target[size] = _fastest(verify)
            first[size] = _fastest(first_pass)
            later[size] = _fastest(lambda size=size: draft(size))  # type: ignore[misc]  # mypy cannot infer it
    sizes = sorted(target)
    slope = (target[sizes[-1]] - target[sizes[0]]) / max(sizes[-1] - sizes[0], 1)
    return CostModel(target, first, later, _ATTENTION_OVERHEAD * max(slope, 1e-9) / (6 * hidden))


def _fastest(run: Callable[[], None]) -> float:
    """Seconds of the fastest of a few runs: what disturbs a run only makes it slower."""
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best
