"""Steps without the drafter leave nothing behind that later drafts, or later requests, would notice."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from vllm import SamplingParams

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.engine.harness import Engine

OFF_TOKENS = 64
REQUESTS = 4
TOKENS = 296
PLAN = RequestPlan(tenant="gaps", arm=Arm.TURBO, fixed=True)


@dataclasses.dataclass
class Run:
    """What some requests emitted and drafted."""

    outputs: list[list[int]]
    cached: list[int]
    """Prompt tokens read from the prefix cache."""
    steps: list[list[tuple[int, list[int], int]]]
    """Per request: (output tokens before the step, drafted, accepted)."""

    def tau(self, since: int = 0) -> float:
        """Acceptance length of the verify steps from output token `since` on."""
        accepted = [count for steps in self.steps for before, _, count in steps if before >= since]
        return 1 + sum(accepted) / len(accepted)


def run(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[list[int]],
    *,
    salt: str,
    tokens: int = TOKENS,
    before_step: Callable[[int], None] = lambda _: None,
    plan: RequestPlan = PLAN,
) -> Run:
    """Answer prompts side by side; `before_step` gets the number of the step to come."""
    core = engine.llm.llm_engine
    params = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=plan.to_extra_args()
    )
    names = [f"{salt}-{number}" for number in range(len(prompts))]
    made: dict[str, list[tuple[int, list[int], int]]] = {name: [] for name in names}
    emitted_before = dict.fromkeys(names, 0)
    state = engine.worker().model_runner.state
    assert state is not None
    record = state.record

    def noted(request: Any, drafted: Any, emitted: Any, *others: Any, **named: Any) -> Any:
        internal = next(name for name, found in state.requests.items() if found is request)
        name = next((name for name in names if internal.startswith(name)), None)
        if name is not None:
            if drafted and emitted:
                made[name].append((emitted_before[name], list(drafted), len(emitted) - 1))
            emitted_before[name] += len(emitted)
        return record(request, drafted, emitted, *others, **named)

    outputs: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.setattr(state, "record", noted)
        for name, ids in zip(names, prompts, strict=True):
            core.add_request(name, {"prompt_token_ids": ids, "cache_salt": salt}, params)
        step = 0
        while core.has_unfinished_requests():
            before_step(step)
            outputs |= {output.request_id: output for output in core.step() if output.finished}
            step += 1
        before_step(-1)
    return Run(
        [list(outputs[name].outputs[0].token_ids) for name in names],
        [outputs[name].num_cached_tokens for name in names],
        [made[name] for name in names],
    )


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    """Prompts of about 100 tokens, prefilled in chunks."""
    return [
        engine.prompt_ids(f"{PROMPTS[number]} Then, at length: {' '.join(PROMPTS[number + 6 : number + 13])}")
        for number in range(REQUESTS)
    ]


@pytest.fixture
def switch(engine: Engine) -> Callable[[bool], None]:
    """Turn the drafter off or on for the step to come, as the load floor does."""
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    runner = engine.worker().model_runner

    def turn(off: bool) -> None:
        runner.drafter_off = off
        scheduler._prefix.drafter_off = off

    return turn


@pytest.fixture(scope="module")
def never_off(engine: Engine, prompts: list[list[int]]) -> Run:
    """The same requests with the drafter on throughout."""
    with pytest.MonkeyPatch.context() as patch:
        return run(engine, patch, prompts, salt=uuid.uuid4().hex)


def off_for(steps: int, turn: Callable[[bool], None]) -> Callable[[int], None]:
    """Off while prompts are prefilled and for that many steps from then on."""
    return lambda step: turn(0 <= step < steps)


def test_acceptance_after_a_gap_is_that_of_never_off(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[list[int]],
    switch: Callable[[bool], None],
    never_off: Run,
) -> None:
    """Off for at least 64 tokens, then on: outputs are the same and drafts are accepted as if never off.

    So they are for later requests that read the blocks with the former gap from the prefix cache.
    """
    salt = uuid.uuid4().hex
    # A request waits until its prompt is prefilled; the last has 64 steps off as well.
    steps = OFF_TOKENS + 2 * REQUESTS
    gap = run(engine, monkeypatch, prompts, salt=salt, before_step=off_for(steps, switch))
    assert gap.outputs == never_off.outputs
    assert all(made[0][0] >= OFF_TOKENS for made in gap.steps)
    since = max(made[0][0] for made in gap.steps)
    assert gap.tau(since) == pytest.approx(never_off.tau(since), rel=0.03)

    longer = [ids + answer for ids, answer in zip(prompts, gap.outputs, strict=True)]
    hit = run(engine, monkeypatch, longer, salt=salt, tokens=48)
    fresh = run(engine, monkeypatch, longer, salt=uuid.uuid4().hex, tokens=48)
    assert all(cached >= 256 for cached in hit.cached), "the gap's blocks were not read from the cache"
    assert not any(fresh.cached)
    assert hit.outputs == fresh.outputs
    assert hit.tau() == pytest.approx(fresh.tau(), rel=0.03)


def test_blocks_with_an_open_gap_are_not_cached(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, switch: Callable[[bool], None]
) -> None:
    """A request that is off until it ends leaves its prompt in the prefix cache, nothing that it decoded."""
    prompt = engine.prompt_ids(" ".join(PROMPTS) * 2)[:250]
    never = RequestPlan(tenant="gaps", arm=Arm.OFF, fixed=True)
    for plan, off in ((PLAN, True), (never, False), (PLAN, False)):
        salt = uuid.uuid4().hex
        before = off_for(10_000, switch) if off else (lambda _: None)
        first = run(engine, monkeypatch, [prompt], salt=salt, plan=plan, before_step=before, tokens=140)
        drafted = plan is PLAN and not off
        assert bool(first.steps[0]) is drafted
        again = run(engine, monkeypatch, [prompt + first.outputs[0]], salt=salt, tokens=2)
        # Three blocks of 128 are full: the first holds prompt alone, and vLLM always computes the last anew.
        assert again.cached == [256 if drafted else 0]


def test_a_request_near_the_length_limit_takes_no_drafts_from_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, prompts: list[list[int]]
) -> None:
    """Drafting goes on for the batch up to the model's last position, with the same outputs."""
    limit = engine.llm.llm_engine.model_config.max_model_len
    long = engine.prompt_ids(" ".join(PROMPTS) * 8)[: limit - 30]
    batch = [long, *prompts[:2]]
    off = RequestPlan(tenant="gaps", arm=Arm.OFF)
    plain = run(engine, monkeypatch, batch, salt=uuid.uuid4().hex, plan=off, tokens=30)
    drafted = run(engine, monkeypatch, batch, salt=uuid.uuid4().hex, tokens=30)
    assert drafted.outputs == plain.outputs
    alone = run(engine, monkeypatch, prompts[:2], salt=uuid.uuid4().hex, tokens=30)
    assert [len(made) for made in drafted.steps[1:]] == [len(made) for made in alone.steps]
    before, last, accepted = drafted.steps[0][-1]
    assert before + len(last) >= 27
    assert accepted <= len(last)
