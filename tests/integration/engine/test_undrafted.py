"""min_p and logit_bias, which vLLM refuses when it speculates, against a stock engine without speculation."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from adaptive.contracts import Arm
from adaptive.engine.logits import accept_undrafted
from adaptive.engine.request import RequestPlan
from tests.integration.engine import stock
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.engine.harness import Engine

TOKENS: Final = 40
WISHES: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logit_bias": {28: -100.0, 30: -100.0, 284: 4.0}},
    {"temperature": 1.0, "seed": 11, "min_p": 0.2},
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 12, "min_p": 0.05, "logit_bias": {28: -100.0}},
    {"temperature": 0.0, "min_p": 0.5},
)
"""Speculating requests among the others, so that every step verifies drafts beside them."""


@pytest.fixture
def accepting(engine: Engine) -> Iterator[Engine]:
    """The engine behind a front end that takes them, as the endpoint's is."""
    processor = engine.llm.llm_engine.input_processor
    before = processor.speculative_config
    accept_undrafted(processor)
    yield engine
    processor.speculative_config = before


def asks_for_more(wish: dict[str, Any]) -> bool:
    """Whether vLLM refuses it when it speculates (it drops min_p where temperature is 0)."""
    return "logit_bias" in wish or ("min_p" in wish and wish["temperature"] > 0)


def test_vllm_still_refuses_what_we_serve(engine: Engine) -> None:
    """Once vLLM takes these itself, there is nothing left to lift."""
    with pytest.raises(VLLMValidationError, match="not yet supported with speculative decoding"):
        engine.llm.generate(
            {"prompt_token_ids": engine.prompt_ids("Hi")}, SamplingParams(min_p=0.2, max_tokens=2)
        )


def test_outputs_are_those_of_an_engine_without_speculation(accepting: Engine) -> None:
    """Greedy and seeded, beside requests that speculate in the same batch: equal token by token."""
    prompts = [accepting.prompt_ids(text) for text in PROMPTS[: len(WISHES)]]
    expected = stock.generate(
        accepting.target,
        [(ids, wish | {"max_tokens": TOKENS}) for ids, wish in zip(prompts, WISHES, strict=True)],
    )
    salt = uuid.uuid4().hex
    # Whatever arm the endpoint chose: the engine itself keeps drafts from such requests.
    # `fixed`: the others draft in every step, however loaded the machine is.
    extra = RequestPlan(tenant="undrafted", arm=Arm.TURBO, fixed=True).to_extra_args()
    outputs = accepting.llm.generate(
        [{"prompt_token_ids": ids, "cache_salt": salt} for ids in prompts],
        [SamplingParams(**wish, max_tokens=TOKENS, extra_args=extra) for wish in WISHES],
        use_tqdm=False,
    )
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    assert len({tuple(ids) for ids in expected}) == len(WISHES)
    undrafted = sum(len(ids) for ids, wish in zip(expected, WISHES, strict=True) if asks_for_more(wish))
    counters = accepting.rpc("adapter_info")["counters"]
    off = [row for row in counters if row["tenant"] == "undrafted" and row["arm"] == Arm.OFF]
    assert sum(row["emitted"] for row in off) >= undrafted
    assert sum(row.get("verify_steps", 0) for row in off) == 0
    assert accepting.counts("undrafted", Arm.TURBO).verify_steps > 0
