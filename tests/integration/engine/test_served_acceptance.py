"""What is served equals what is computed offline: features, positions and weights are aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from adaptive.speculator.checkpoint import load_turbo
from adaptive.speculator.evaluation import walk
from adaptive.speculator.sequences import TracedSequence
from adaptive.speculator.target import compute_features, embedding_table, load_target
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.speculator.adapter import Adapter
    from tests.integration.engine.harness import Engine


@pytest.mark.parametrize("scale", [None, 0.05])
def test_served_tau_equals_offline_walked_tau(engine: Engine, target: Path, scale: float | None) -> None:
    """Served and offline tau of the same answers agree within 3 %, for turbo and for an adapter."""
    tenant = f"aligned-{scale}"
    adapter: Adapter | None = None
    if scale is not None:
        adapter = engine.random_adapter(scale, seed=7)
        engine.commit(tenant, 1, adapter)
    arm, version = (Arm.TURBO, 0) if adapter is None else (Arm.ADAPTER, 1)
    prompts = [engine.prompt_ids(text) for text in PROMPTS]
    answers = engine.generate(prompts, RequestPlan(tenant=tenant, arm=arm, fixed=True), max_tokens=96)
    served = engine.counts(tenant, arm, version)

    model = load_target(target)
    sequences = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor(prompt + answer)
        features, last_hidden = compute_features(model, ids[None], engine.speculator.feature_layers)
        sequences.append(TracedSequence(ids, len(prompt), 0, features[0], last_hidden[0]))
    head = load_turbo(engine.turbo, embedding_table(model))
    offline = walk(head, adapter, sequences, lookahead=4)
    assert served.verify_steps > 200
    assert served.tau == pytest.approx(offline.tau, rel=0.03)
