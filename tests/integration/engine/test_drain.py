"""A drained engine holds nothing of the requests it served, whichever way they ended."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from vllm import SamplingParams

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from tests.integration.engine.harness import Engine

REQUESTS = 9


def test_tables_are_empty_after_requests_ended_or_were_aborted(engine: Engine) -> None:
    """Scheduler, runner and slots: some requests finish, some are aborted waiting, some in mid-answer."""
    engine.commit("drain", 1, engine.random_adapter(0.3))
    core = engine.llm.llm_engine
    names = [uuid.uuid4().hex for _ in range(REQUESTS)]
    for number, name in enumerate(names):
        plan = RequestPlan(tenant="drain", arm=(Arm.ADAPTER, Arm.TURBO, Arm.OFF)[number % 3], learn=True)
        params = SamplingParams(
            temperature=0, max_tokens=24, ignore_eos=True, extra_args=plan.to_extra_args()
        )
        prompt = {"prompt_token_ids": engine.prompt_ids(PROMPTS[number]), "cache_salt": "drain"}
        core.add_request(name, prompt, params)
    core.abort_request(names[-1:])
    finished = 0
    steps = 0
    while core.has_unfinished_requests():
        finished += sum(output.finished for output in core.step())
        steps += 1
        if steps == 8:
            core.abort_request(names[:2])
    core.step()  # tells the worker who ended
    assert finished == REQUESTS - 3
    scheduler = core.engine_core.engine_core.scheduler
    runner = engine.worker().model_runner
    state = runner.state
    assert state is not None
    assert (scheduler._lookahead, scheduler._made_by, scheduler._reported_always) == ({}, {}, set())
    assert len(scheduler._prefix) == 0
    assert state.requests == {}
    assert runner.requests == {}
    assert len(runner._first_passes.gaps) == 0
    assert all(slot.requests == 0 for slot in state.slots.occupied())
    assert engine.rpc("flush_traces", 30.0)
    assert state.info()["capture"]["queue_depth"] == 0
