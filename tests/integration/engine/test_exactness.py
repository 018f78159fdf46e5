"""Outputs keep the target's distribution exactly, whoever drafts."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch
from scipy import stats
from vllm import SamplingParams

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from tests.integration.engine.harness import MAX_BATCHED_TOKENS
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from tests.integration.engine.harness import Counts, Engine

TOKENS = 64
SAMPLES = 1000
MOVE = True
"""Requests in flight go on with the new version."""


@pytest.fixture(scope="module")
def plain(engine: Engine) -> list[list[int]]:
    """Greedy answers without speculation."""
    prompts = [engine.prompt_ids(text) for text in PROMPTS]
    return engine.generate(prompts, RequestPlan(tenant="exact", arm=Arm.OFF), max_tokens=TOKENS)


def answers(engine: Engine, tenant: str, arm: Arm, *, fixed: bool = True) -> list[list[int]]:
    """Greedy answers of all prompts with one arm; `fixed`: alone, and always up to its cap."""
    prompts = [engine.prompt_ids(text) for text in PROMPTS]
    return engine.generate(prompts, RequestPlan(tenant=tenant, arm=arm, fixed=fixed), max_tokens=TOKENS)


@pytest.fixture(scope="module")
def turbo_counts(engine: Engine) -> Counts:
    """What turbo drafts and accepts on all prompts."""
    answers(engine, "turbo", Arm.TURBO)
    return engine.counts("turbo", Arm.TURBO)


def test_no_drafts_are_made_or_verified_with_speculation_off(engine: Engine, plain: list[list[int]]) -> None:
    """The off arm verifies nothing: lookahead 0 is real."""
    assert sum(map(len, plain)) > 500
    assert engine.counts("exact", Arm.OFF).verify_steps == 0


def test_turbo_changes_no_greedy_output(engine: Engine, plain: list[list[int]]) -> None:
    """Greedy float32 answers with turbo are byte-identical to those without speculation."""
    assert answers(engine, "exact", Arm.TURBO) == plain
    assert engine.counts("exact", Arm.TURBO).tau > 1.5


def test_early_stops_change_no_greedy_output(engine: Engine, plain: list[list[int]]) -> None:
    """Drafting only as far as it pays makes fewer drafts, some stop early, and the answers are the same."""
    before = engine.rpc("adapter_info")["counters"]
    prompts = [engine.prompt_ids(text) for text in PROMPTS]
    plan = RequestPlan(tenant="stop", arm=Arm.TURBO, ngram=False)
    assert engine.generate(prompts, plan, max_tokens=TOKENS) == plain
    (row,) = (
        row
        for row in engine.rpc("adapter_info")["counters"]
        if row["tenant"] == "stop" and row not in before and row.get("verify_steps", 0)
    )
    assert row["early_stops"] > 10
    assert sum(chosen > 0 for chosen in row["lookahead_chosen"]) >= 3


def test_copies_change_no_greedy_output(engine: Engine, plain: list[list[int]]) -> None:
    """The second time a tenant asks, its n-gram arm knows the answers, and they stay the same."""
    for _ in range(2):
        assert answers(engine, "copies", Arm.TURBO, fixed=False) == plain
    drafters = engine.drafters("copies")
    assert drafters[Arm.TURBO].accepted > 50
    assert drafters[Arm.NGRAM].tau > 4


@pytest.mark.parametrize("right", [True, False])
def test_predictions_change_no_greedy_output(engine: Engine, plain: list[list[int]], right: bool) -> None:
    """A right prediction is accepted nearly throughout, a wrong one costs drafts and nothing else."""
    tenant = f"prediction-{right}"
    for number, text in enumerate(PROMPTS[:4]):
        prediction = plain[number] if right else list(reversed(plain[number]))
        plan = RequestPlan(tenant=tenant, arm=Arm.TURBO, ngram=False, prediction=prediction)
        assert engine.generate([engine.prompt_ids(text)], plan, max_tokens=TOKENS) == [plain[number]]
    predicted = engine.drafters(tenant).get(Arm.PREDICTION)
    if right:
        assert predicted is not None
        assert predicted.tau > 4
    elif predicted is not None:
        assert predicted.accepted < predicted.drafted / 4


def test_switching_speculation_in_mid_generation_changes_no_greedy_output(
    engine: Engine, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load floor goes off and on every few steps: the same answers, and drafts in between."""
    state = engine.worker().model_runner.state
    assert state is not None

    class Switch:
        steps = 0

        def step(self, _speedup: float) -> bool:
            self.steps += 1
            return self.steps // 5 % 2 == 1

    before = engine.rpc("adapter_info")["floor_steps"]
    with monkeypatch.context() as patch:
        patch.setattr(state.speculation, "floor", Switch())
        assert answers(engine, "switched", Arm.TURBO, fixed=False) == plain
    engine.worker().model_runner.drafter_off = False
    assert engine.rpc("adapter_info")["floor_steps"] - before > 10
    assert engine.drafters("switched")[Arm.TURBO].accepted > 50


def test_adapter_changes_no_greedy_output_and_a_random_one_lowers_acceptance(
    engine: Engine, plain: list[list[int]], turbo_counts: Counts
) -> None:
    """A random adapter at w = 1 costs acceptance and nothing else."""
    engine.commit("random", 1, engine.random_adapter(2.0))
    assert answers(engine, "random", Arm.ADAPTER) == plain
    random = engine.counts("random", Arm.ADAPTER, 1)
    assert random.verify_steps > 0
    assert random.tau < turbo_counts.tau - 0.2


@pytest.mark.parametrize(("tenant", "scale", "weight"), [("zero", 0.0, 1.0), ("weightless", 2.0, 0.0)])
def test_adapter_without_effect_accepts_exactly_what_turbo_accepts(
    engine: Engine, turbo_counts: Counts, tenant: str, scale: float, weight: float
) -> None:
    """A zero adapter, and any adapter at w = 0, drafts the same tokens as turbo: every count is equal."""
    engine.commit(tenant, 1, engine.random_adapter(scale), weight=weight)
    answers(engine, tenant, Arm.ADAPTER)
    assert engine.counts(tenant, Arm.ADAPTER, 1) == turbo_counts


def test_swap_in_mid_generation_changes_no_greedy_output(engine: Engine, plain: list[list[int]]) -> None:
    """Requests moved to another adapter between two steps go on with the same output; none fails."""
    engine.commit("swap", 1, engine.random_adapter(1.0, seed=1))
    core = engine.llm.llm_engine
    salt = uuid.uuid4().hex
    for number, text in enumerate(PROMPTS):
        core.add_request(
            f"swap-{number}",
            {"prompt_token_ids": engine.prompt_ids(text), "cache_salt": salt},
            SamplingParams(
                temperature=0,
                max_tokens=TOKENS,
                extra_args=RequestPlan(tenant="swap", arm=Arm.ADAPTER).to_extra_args(),
            ),
        )
    finished: dict[str, list[int]] = {}
    steps = 0
    while core.has_unfinished_requests():
        for output in core.step():
            if output.finished:
                # vLLM appends a suffix of its own to request ids inside the core only.
                finished[output.request_id] = list(output.outputs[0].token_ids)
        steps += 1
        if steps % 12 == 0:
            version = 1 + steps // 12
            path = engine.adapter_file("swap", version, engine.random_adapter(1.0, seed=version))
            assert engine.stage("swap", version, path) == ("ready", "")
            assert "error" not in engine.rpc("commit_adapter", "swap", version, 1.0, MOVE)
    assert [finished[f"swap-{number}"] for number in range(len(PROMPTS))] == plain
    drafted_with = {
        row["version"]
        for row in engine.rpc("adapter_info")["counters"]
        if row["tenant"] == "swap" and row.get("verify_steps", 0)
    }
    assert len(drafted_with) >= 3
    assert max(engine.rpc("adapter_info")["pauses_ms"]) < 20


def sample(engine: Engine, plan: RequestPlan, seed: int) -> list[list[int]]:
    """The first two tokens of SAMPLES answers to a short prompt."""
    torch.manual_seed(
        seed
    )  # the engine is in this process; a generator per request would take twice the time
    # Without the template's system prompt: short, so that thousands of prefills stay cheap.
    prompt = engine.llm.get_tokenizer().encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    return engine.generate([prompt] * SAMPLES, plan, max_tokens=2, temperature=0.8, ignore_eos=True)


@pytest.fixture(scope="module")
def plain_samples(engine: Engine) -> list[list[int]]:
    """Samples without speculation."""
    return sample(engine, RequestPlan(tenant="sampled", arm=Arm.OFF), 1)


@pytest.mark.parametrize(("arm", "fixed"), [(Arm.TURBO, True), (Arm.ADAPTER, False)])
def test_sampled_distribution_matches_no_speculation(
    engine: Engine, plain_samples: list[list[int]], arm: Arm, fixed: bool
) -> None:
    """At T = 0.8 the first two tokens of 1,000 samples are distributed as without speculation.

    That is so for turbo alone and with everything on: adapter, choice, early stop, copies and load floor.
    """
    tenant = f"sampled-{arm}-{fixed}"
    engine.commit(tenant, 1, engine.random_adapter(0.3))
    drafted = sample(engine, RequestPlan(tenant=tenant, arm=arm, fixed=fixed), 2)
    assert sum(counts.accepted for counts in engine.drafters(tenant).values()) > 100
    for token in (0, 1):
        p_value = homogeneity([row[token] for row in plain_samples], [row[token] for row in drafted])
        assert p_value > 1e-3


def test_seeded_request_with_a_chunked_prompt_is_served_and_repeatable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed together with a prompt prefilled in chunks, which ends a stock CPU engine, just works.

    The answers are the same unless the load floor was off for one and not for the other.
    """
    state = engine.worker().model_runner.state
    assert state is not None
    monkeypatch.setattr(state.speculation.floor, "step", lambda _: False)
    engine.worker().model_runner.drafter_off = False
    prompt = engine.prompt_ids(" ".join(PROMPTS))
    assert len(prompt) > MAX_BATCHED_TOKENS
    plan = RequestPlan(tenant="seeded", arm=Arm.TURBO)
    first, second = (
        engine.generate([prompt], plan, max_tokens=16, temperature=1.0, seeds=[11]) for _ in range(2)
    )
    assert first == second


def homogeneity(first: list[int], second: list[int]) -> float:
    """P value of a chi-square test that two samples share a distribution; rare values are pooled."""
    counts = Counter(first), Counter(second)
    common = [value for value in counts[0] | counts[1] if counts[0][value] + counts[1][value] >= 20]
    table = [[count[value] for value in common] for count in counts]
    for row, sample in zip(table, (first, second), strict=True):
        row.append(len(sample) - sum(row))
    if table[0][-1] + table[1][-1] == 0:
        table = [row[:-1] for row in table]
    return float(stats.chi2_contingency(table).pvalue)
