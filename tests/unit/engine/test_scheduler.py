"""The lookahead of each request and who drafted for it, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler

from adaptive.contracts import Arm
from adaptive.engine.drafts import SourcedDraftTokenIds
from adaptive.engine.prefix import PrefixGuard
from adaptive.engine.report import DraftersReport
from adaptive.engine.request import RequestPlan
from adaptive.engine.scheduler import AdaptiveScheduler


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> AdaptiveScheduler:
    """A scheduler of at most 4 drafts whose stock methods do nothing."""
    made = object.__new__(AdaptiveScheduler)
    made.num_spec_tokens = 4
    made._lookahead = {}
    made._made_by = {}
    made._report = DraftersReport()
    made._reported_always = set()
    made._prefix = PrefixGuard()
    made.requests = {}
    monkeypatch.setattr(PrefixGuard, "step", lambda *_, **__: None)
    monkeypatch.setattr(Scheduler, "add_request", lambda *_: None)
    monkeypatch.setattr(Scheduler, "update_draft_token_ids", lambda *_: None)
    return made


def add(scheduler: AdaptiveScheduler, request_id: str, plan: RequestPlan | None, **sampling: Any) -> None:
    """Queue a request."""
    params = SamplingParams(extra_args=plan.to_extra_args() if plan else None, **sampling)
    scheduler.add_request(SimpleNamespace(request_id=request_id, sampling_params=params))


def ended(scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch, finished: set[str]) -> None:
    """Schedule a step that reports these requests as finished."""
    output = SimpleNamespace(num_scheduled_tokens={}, finished_req_ids=finished)
    monkeypatch.setattr(Scheduler, "schedule", lambda _: output)
    scheduler.schedule()


def step(
    scheduler: AdaptiveScheduler,
    monkeypatch: pytest.MonkeyPatch,
    steps: dict[str, tuple[list[int], list[int]]],
    finished: frozenset[str] = frozenset(),
) -> dict[str, dict[str, Any] | None]:
    """A step that verified (drafts, emitted) per request; what each output carries."""
    outputs = [
        SimpleNamespace(
            request_id=name, finish_reason="stop" if name in finished else None, kv_transfer_params=None
        )
        for name in steps
    ]
    monkeypatch.setattr(Scheduler, "update_from_output", lambda *_: {0: SimpleNamespace(outputs=outputs)})
    scheduler.update_from_output(
        SimpleNamespace(
            scheduled_spec_decode_tokens={name: drafts for name, (drafts, _) in steps.items() if drafts}
        ),
        SimpleNamespace(
            req_id_to_index={name: row for row, name in enumerate(steps)},
            sampled_token_ids=[emitted for _, emitted in steps.values()],
        ),
    )
    return {output.request_id: output.kv_transfer_params for output in outputs}


def drafted(scheduler: AdaptiveScheduler, made_by: dict[str, tuple[Arm, int]]) -> None:
    """The worker drafted for these requests."""
    scheduler.update_draft_token_ids(
        SourcedDraftTokenIds(list(made_by), [[1, 2, 3, 4]] * len(made_by), list(made_by.values()))
    )


def row(arm: str, version: int, verify_steps: int, drafted: int, accepted: int) -> dict[str, Any]:
    """One drafter of a report."""
    return {
        "arm": arm,
        "version": version,
        "verify_steps": verify_steps,
        "drafted": drafted,
        "accepted": accepted,
    }


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
    scheduler.update_draft_token_ids(SourcedDraftTokenIds(["off", "two", "nine"], drafts, [(Arm.OFF, 0)] * 3))
    assert taken[0].req_ids == ["off", "two", "nine"]
    assert taken[0].draft_token_ids == [[], [1, 2], [1, 2, 3, 4]]


def test_the_last_output_says_who_really_drafted(
    scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify steps, drafted and accepted per arm and version; steps without drafts do not count."""
    add(scheduler, "one", RequestPlan(arm=Arm.ADAPTER))
    add(scheduler, "off", RequestPlan(arm=Arm.OFF))
    drafted(scheduler, {"one": (Arm.ADAPTER, 3), "off": (Arm.OFF, 0)})
    sent = step(scheduler, monkeypatch, {"one": ([1, 2, 3, 4], [1, 2, 9]), "off": ([], [5])})
    assert sent == {"one": None, "off": None}
    drafted(scheduler, {"one": (Arm.NGRAM, 0)})
    step(scheduler, monkeypatch, {"one": ([1, 2], [8])})
    drafted(scheduler, {"one": (Arm.ADAPTER, 3)})
    sent = step(
        scheduler, monkeypatch, {"one": ([1], [1, 7]), "off": ([], [6])}, finished=frozenset({"one", "off"})
    )
    assert sent["one"] == {"adaptive": [row("adapter", 3, 2, 5, 3), row("ngram", 0, 1, 2, 0)]}
    assert sent["off"] == {"adaptive": []}


def test_requests_with_stop_strings_report_with_every_output(
    scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server ends such a request by itself: any output may have been its last."""
    add(scheduler, "one", RequestPlan(), stop=["\n"])
    drafted(scheduler, {"one": (Arm.TURBO, 0)})
    sent = step(scheduler, monkeypatch, {"one": ([1], [1, 2])})
    assert sent["one"] == {"adaptive": [row("turbo", 0, 1, 1, 1)]}


def test_answers_to_one_client_request_are_summed(
    scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several requests answer one with n > 1: the last to end carries the sums of all, late comers too."""
    for name in ("0", "1"):
        add(scheduler, name, RequestPlan(group="client"))
        drafted(scheduler, {name: (Arm.TURBO, 0)})
        sent = step(scheduler, monkeypatch, {name: ([1], [1, 2])}, finished=frozenset({name}))
        ended(scheduler, monkeypatch, {name})
    assert sent["1"] == {"adaptive": [row("turbo", 0, 2, 2, 2)]}


def test_finished_requests_are_forgotten(
    scheduler: AdaptiveScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables do not grow with the requests served."""
    for number in range(300):
        name = f"request-{number}"
        add(scheduler, name, RequestPlan(group=f"group-{number}"), stop=["x"])
        drafted(scheduler, {name: (Arm.TURBO, 0)})
        ended(scheduler, monkeypatch, {name})
    assert (scheduler._lookahead, scheduler._made_by, scheduler._reported_always) == ({}, {}, set())
    assert (scheduler._report._groups, scheduler._report._group_of) == ({}, {})
    assert len(scheduler._report._ended) == 256
