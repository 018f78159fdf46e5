"""What the runner adds to a step of vLLM's, with vLLM's part of the step made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from adaptive.contracts import Arm
from adaptive.engine.gaps import Gaps
from adaptive.engine.proposer import AdaptiveProposer
from adaptive.engine.request import RequestPlan
from adaptive.engine.runner import AdaptiveCPUModelRunner
from adaptive.engine.skipping import FirstPasses
from tests.unit.engine.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptive.speculator.config import SpeculatorConfig
    from tests.unit.engine.conftest import AdapterFiles

LOOKAHEAD = 4
REQUESTS = ["1", "2"]
DRAFTS = torch.tensor([[20, 21, 22, 23], [30, 31, 32, 33]], dtype=torch.int32)


class Vllm:
    """vLLM's part of a step: samples, and drafts unless the batch is too close to the length limit."""

    def __init__(self) -> None:
        self.near_the_limit = False
        self.emitted = [[9], [9]]
        self.drawn: dict[int, float] = {}
        self.error: Exception | None = None
        self.scheduler_output: Any = None
        self.arguments = (None, None, None, [torch.zeros(16, 2)], None, None, None)
        """Of the drafter: sampling metadata to slot mappings, the features among them."""
        self.first_passes = 0

    def propose_draft_token_ids(self, runner: Any) -> torch.Tensor:
        """The drafter's passes: as many as the step wants."""
        self.first_passes += 1
        step, columns = runner.drafter._step, DRAFTS.T.tolist()
        if step is None:
            runner.draft_token_ids_cpu.copy_(DRAFTS)
            return DRAFTS
        step.first(columns[0], [1.0] * len(REQUESTS))
        for column in columns[1:]:
            if not step.another():
                break
            step.add(column, [1.0] * len(REQUESTS))
        return torch.empty((len(REQUESTS), 0))

    def sample_tokens(self, runner: Any, _grammar_output: Any) -> Any:
        """Draw from every row's generator, draft, keep the books."""
        for row, generator in runner.input_batch.generators.items():
            self.drawn[row] = torch.rand(1, generator=generator).item()
        if self.near_the_limit:
            runner._draft_token_ids = torch.zeros(1, dtype=torch.int32).expand(len(REQUESTS), LOOKAHEAD)
            runner.draft_token_ids_cpu.zero_()
        else:
            padded = [row + [-1] * (LOOKAHEAD + 1 - len(row)) for row in self.emitted]
            runner._draft_token_ids = runner.propose_draft_token_ids(
                self.scheduler_output, torch.tensor(padded), *self.arguments
            )
        runner._draft_token_req_ids = list(REQUESTS)
        runner._bookkeeping_sync()
        return SimpleNamespace(
            sampled_token_ids=self.emitted, req_id_to_index={name: row for row, name in enumerate(REQUESTS)}
        )

    def bookkeeping_sync(self, runner: Any) -> None:
        """Rewind the generators of discarded rows the way only CUDA's can be."""
        for row in runner.discard_request_mask.np.nonzero()[0]:
            generator = runner.input_batch.generators.get(int(row))
            if generator is not None:
                generator.set_offset(generator.get_offset() - 4)
        if self.error is not None:
            raise self.error


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    """VLLM in place of vLLM."""
    made = Vllm()
    monkeypatch.setattr(CPUModelRunner, "sample_tokens", lambda *both: made.sample_tokens(*both))  # noqa: PLW0108  binds the runner
    monkeypatch.setattr(CPUModelRunner, "_bookkeeping_sync", lambda one: made.bookkeeping_sync(one))  # noqa: PLW0108  same
    monkeypatch.setattr(
        CPUModelRunner, "propose_draft_token_ids", lambda one, *_: made.propose_draft_token_ids(one)
    )
    return made


@pytest.fixture
def harness(speculator: SpeculatorConfig, adapter_file: AdapterFiles) -> Harness:
    """An engine state with two requests of turbo's in flight, both recorded."""
    made = Harness(speculator, adapter_file)
    for request_id in REQUESTS:
        made.begin(request_id, plan=RequestPlan(tenant="acme", arm=Arm.TURBO, learn=True, fixed=True))
    return made


@pytest.fixture
def runner(harness: Harness) -> Any:
    """A runner of these two requests; seeded ones, whose samples are kept."""
    made: Any = object.__new__(AdaptiveCPUModelRunner)
    made.state = harness.state
    made.drafter = object.__new__(AdaptiveProposer)
    made.num_spec_tokens = LOOKAHEAD
    made.draft_token_ids_cpu = torch.zeros(len(REQUESTS), LOOKAHEAD, dtype=torch.int64)
    made.draft_token_ids_event = SimpleNamespace(synchronize=lambda: None)
    made.input_batch = SimpleNamespace(
        req_ids=list(REQUESTS),
        num_reqs=len(REQUESTS),
        generators={row: torch.Generator().manual_seed(row) for row in range(len(REQUESTS))},
    )
    made.discard_request_mask = SimpleNamespace(np=np.zeros(len(REQUESTS), dtype=bool))
    made.requests = {name: SimpleNamespace(num_prompt_tokens=3) for name in REQUESTS}
    made._positions = dict.fromkeys(REQUESTS, 3)
    made._given_up = []
    made._first_passes = FirstPasses(Gaps(16))
    made._step_started = made._step_ended = made._execute_seconds = 0.0
    return made


@pytest.fixture
def step(runner: Any, vllm: Vllm) -> Callable[..., list[list[int]]]:
    """Run one step that verifies what the last one scheduled; returns the drafts of the next."""
    scheduled: list[list[int]] = [[] for _ in REQUESTS]

    def run(emitted: list[list[int]]) -> list[list[int]]:
        nonlocal scheduled
        vllm.emitted = emitted
        vllm.scheduler_output = SimpleNamespace(
            scheduled_spec_decode_tokens=dict(zip(REQUESTS, scheduled, strict=True)),
            num_scheduled_tokens={
                name: 1 + len(drafts) for name, drafts in zip(REQUESTS, scheduled, strict=True)
            },
            total_num_scheduled_tokens=sum(1 + len(drafts) for drafts in scheduled),
        )
        runner.execute_model_state = SimpleNamespace(scheduler_output=vllm.scheduler_output)
        runner.sample_tokens(None)
        scheduled = runner.take_draft_token_ids().draft_token_ids
        return scheduled

    return run


def test_drafts_are_scheduled_and_counted(step: Callable[..., list[list[int]]], harness: Harness) -> None:
    """The usual step: what the drafter made is verified next, and credited to its arm."""
    assert step([[9], [9]]) == DRAFTS.tolist()
    step([[20, 21, 40], [50]])
    totals = harness.counted("acme", Arm.TURBO, 0)
    assert (totals.verify_steps, totals.drafted, totals.accepted) == (2, 8, 2)


def test_placeholders_are_withdrawn(
    step: Callable[..., list[list[int]]], vllm: Vllm, harness: Harness
) -> None:
    """Near the length limit vLLM drafts token 0 four times: none is verified, counted or recorded.

    The drafts that were made before are counted still, and drafting goes on where there is room again.
    """
    step([[9], [9]])
    vllm.near_the_limit = True
    assert step([[20, 40], [30, 50]]) == [[], []]
    assert step([[41], [51]]) == [[], []]
    totals = harness.counted("acme", Arm.TURBO, 0)
    assert (totals.verify_steps, totals.drafted, totals.accepted, totals.emitted) == (2, 8, 2, 8)
    vllm.near_the_limit = False
    assert step([[42], [52]]) == DRAFTS.tolist()
    harness.state.finish("1")
    record = harness.publisher.segments[0].record
    assert record.output_ids == [9, 20, 40, 41, 42]
    assert [verify.confidences for verify in record.steps] == [[1.0] * LOOKAHEAD]


def test_a_discarded_sample_takes_no_random_numbers(
    step: Callable[..., list[list[int]]], runner: Any, vllm: Vllm
) -> None:
    """A seeded request whose prompt is prefilled in chunks draws as if it came in one; others go on."""
    runner.discard_request_mask.np[1] = True
    step([[9], []])
    first = dict(vllm.drawn)
    runner.discard_request_mask.np[1] = False
    step([[9], [9]])
    assert vllm.drawn[1] == first[1]
    assert vllm.drawn[0] != first[0]
    step([[9], [9]])
    assert vllm.drawn[1] != first[1]


def test_generators_survive_a_failed_step(
    step: Callable[..., list[list[int]]], runner: Any, vllm: Vllm
) -> None:
    """Every row has its generator again, in the state it was, whatever vLLM raises."""
    runner.discard_request_mask.np[1] = True
    generators = dict(runner.input_batch.generators)
    before = generators[1].get_state()
    vllm.error = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        step([[9], []])
    assert runner.input_batch.generators == generators
    assert torch.equal(generators[1].get_state(), before)


def test_warm_up_has_no_state(step: Callable[..., list[list[int]]], runner: Any) -> None:
    """Before the models serve, vLLM's steps run with nothing to count, generators included."""
    runner.state = None
    runner.discard_request_mask.np[1] = True
    assert step([[9], []]) == DRAFTS.tolist()
