"""An exported adapter in a stock vLLM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from adaptive.speculator.export import ExportFormat, Verifier, export_merged
from tests.integration.engine import stock
from tests.integration.engine.harness import LOOKAHEAD
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.engine.harness import Engine

TOKENS = 64


def test_a_stock_vllm_accepts_as_much_with_the_exported_adapter(engine: Engine, tmp_path: Path) -> None:
    """Same answers and, within noise, the same tau as the adapter has in our engine; turbo's is another."""
    prompts = [engine.prompt_ids(text) for text in PROMPTS]
    adapter = engine.random_adapter(1.0)
    engine.commit("exported", 1, adapter)
    expected = {}
    for arm in (Arm.TURBO, Arm.ADAPTER):
        plan = RequestPlan(tenant="exported", arm=arm, fixed=True)
        answers = engine.generate(prompts, plan, max_tokens=TOKENS)
        expected[arm] = engine.counts("exported", arm, 1 if arm is Arm.ADAPTER else 0).tau
    architectures = json.loads((engine.target / "config.json").read_text())["architectures"]
    export_merged(
        tmp_path / "drafter",
        engine.turbo,
        adapter.tensors(),
        weight=1.0,
        form=ExportFormat.SPECULATORS,
        verifier=Verifier(str(engine.target), architectures),
        lookahead=LOOKAHEAD,
    )
    greedy = {"temperature": 0.0, "max_tokens": TOKENS}
    found, tau = stock.speculate(tmp_path / "drafter", [(ids, greedy) for ids in prompts])
    assert found == answers
    assert abs(tau - expected[Arm.ADAPTER]) < 0.05 * expected[Arm.ADAPTER]
    assert abs(tau - expected[Arm.TURBO]) > 0.1 * expected[Arm.TURBO]
