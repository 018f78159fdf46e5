"""The lookahead of each request, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from adaptive.engine.scheduler import AdaptiveScheduler


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> AdaptiveScheduler:
    """A scheduler of cap 4 whose stock methods note what they are given."""
    made = object.__new__(AdaptiveScheduler)
    made._cap = 4
    made._lookahead = {}
    monkeypatch.setattr(Scheduler, "add_request", lambda *_: None)
    return made


def add(scheduler: AdaptiveScheduler, request_id: str, plan: RequestPlan | None) -> None:
    """Queue a request."""
    params = SamplingParams(extra_args=plan.to_extra_args() if plan else None)
    scheduler.add_request(SimpleNamespace(request_id=request_id, sampling_params=params))


def scheduled(monkeypatch: pytest.MonkeyPatch, tokens: dict[str, int], finished: set[str]) -> None:
    """Let the stock scheduler schedule these requests."""
    output = SimpleNamespace(
        num_scheduled_tokens=tokens, finished_req_ids=finished, num_spec_tokens_to_schedule=99
    )
    monkeypatch.setattr(Scheduler, "schedule", lambda _: output)


def test_the_drafter_runs_as_deep_as_the_deepest_request_of_the_batch(
    scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that are not in this step's batch ask for nothing; all off means no drafting."""
    add(scheduler, "off", RequestPlan(arm=Arm.OFF))
    add(scheduler, "two", RequestPlan(arm=Arm.TURBO, lookahead=2))
    add(scheduler, "plain", None)
    for batch, expected in (
        ({"off": 1}, 0),
        ({"off": 1, "two": 3}, 2),
        ({"off": 1, "two": 3, "plain": 5}, 4),
        ({}, 0),
    ):
        scheduled(monkeypatch, batch, set())
        assert scheduler.schedule().num_spec_tokens_to_schedule == expected


def test_drafts_are_cut_to_each_requests_lookahead(
    scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request never verifies more drafts than it asked for, whoever shares its batch."""
    taken: list[Any] = []
    monkeypatch.setattr(Scheduler, "update_draft_token_ids", lambda _, drafts: taken.append(drafts))
    add(scheduler, "off", RequestPlan(arm=Arm.OFF))
    add(scheduler, "two", RequestPlan(arm=Arm.ADAPTER, lookahead=2))
    add(scheduler, "nine", RequestPlan(arm=Arm.TURBO, lookahead=9))
    drafts = [[1, 2, 3, 4]] * 3
    scheduler.update_draft_token_ids(DraftTokenIds(["off", "two", "nine"], drafts))
    assert taken[0].req_ids == ["off", "two", "nine"]
    assert taken[0].draft_token_ids == [[], [1, 2], [1, 2, 3, 4]]


def test_finished_requests_are_forgotten(
    scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table does not grow with the requests served."""
    add(scheduler, "one", RequestPlan())
    scheduled(monkeypatch, {}, {"one"})
    scheduler.schedule()
    assert scheduler._lookahead == {}
