"""Measuring all arms on the same prompts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from adaptive.demo.client import RequestFailedError
from adaptive.demo.probe import ARMS, ArmResult, probe
from tests.unit.demo.prompts import answer, prompts

if TYPE_CHECKING:
    from adaptive.contracts import Arm
    from adaptive.demo.client import Completion

FOREVER = time.monotonic() + 1e6


class Client:
    """Answers, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Arm]] = []
        self.arguments: list[dict[str, Any]] = []

    def complete(self, messages: Any, *, arm: Arm, **arguments: Any) -> Completion:
        """Answer with numbers that tell the arms apart."""
        self.asked.append((messages[-1]["content"], arm))
        self.arguments.append(arguments)
        number = ARMS.index(arm)
        return answer(tokens=10 * (number + 1), seconds=2.0, version=number)


def run(client: Client, count: int = 6, **arguments: Any) -> dict[Arm, ArmResult]:
    """Probe with `count` prompts and no hurry."""
    options = {
        "max_tokens": 48,
        "deadline": FOREVER,
        "minimum": 1,
        "progress": lambda *_: None,
    } | arguments
    return probe(client, prompts(count), **options)  # type: ignore[arg-type]  # a stand-in


def test_every_prompt_is_answered_by_every_arm_in_a_rotating_order() -> None:
    """No arm is always first: what drifts with time (heat, caches) falls on all alike."""
    client = Client()
    run(client, 6)
    by_prompt = [client.asked[start : start + 3] for start in range(0, 18, 3)]
    for number, turns in enumerate(by_prompt):
        assert {prompt for prompt, _ in turns} == {f"question {number}"}
        assert {arm for _, arm in turns} == set(ARMS)
    for place in range(3):
        assert sorted(turns[place][1] for turns in by_prompt) == sorted([*ARMS, *ARMS])


def test_probes_are_greedy_and_bounded() -> None:
    """Temperature 0; the shorter of the run's and the prompt's limit."""
    client = Client()
    run(client, 1)
    assert client.arguments == [{"max_tokens": 48, "temperature": 0.0}] * 3
    client = Client()
    run(client, 1, max_tokens=100)
    assert {arguments["max_tokens"] for arguments in client.arguments} == {64}


def test_results_are_summed_per_arm() -> None:
    """Each arm has its own tokens and versions."""
    results = run(Client(), 4)
    assert [results[arm].output_tokens for arm in ARMS] == [40, 80, 120]
    assert [results[arm].versions for arm in ARMS] == [{0}, {1}, {2}]
    assert {result.seconds for result in results.values()} == {8.0}


@pytest.mark.parametrize(("minimum", "expected"), [(0, 0), (2, 2), (9, 6)])
def test_the_deadline_leaves_the_minimum(minimum: int, expected: int) -> None:
    """A run that is late still measures something, and never begins half a prompt."""
    client = Client()
    run(client, 6, deadline=time.monotonic() - 1, minimum=minimum)
    assert len(client.asked) == 3 * expected


def test_progress_counts_prompts() -> None:
    """Called after each one."""
    seen: list[tuple[int, int]] = []
    run(Client(), 3, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_failed_probe_is_no_measurement() -> None:
    """It ends the demo: a report with a hole would compare different prompts."""

    class Broken(Client):
        def complete(self, messages: Any, *, arm: Arm, **arguments: Any) -> Completion:
            if len(self.asked) == 4:
                raise RequestFailedError("HTTP 500")
            return super().complete(messages, arm=arm, **arguments)

    with pytest.raises(RequestFailedError, match="HTTP 500"):
        run(Broken())


def test_rates_are_over_all_answers() -> None:
    """Tau is 1 + accepted / verify steps; position i counts steps that accepted more than i drafts."""
    result = ArmResult()
    result.add(answer(tokens=30, seconds=1.0, steps=4, histogram=(1, 1, 2)))
    result.add(answer(tokens=10, seconds=3.0, steps=6, histogram=(2, 1, 1, 2)))
    assert result.tokens_per_second == 10.0
    assert result.accepted == 14
    assert result.tau == 2.4
    assert result.histogram == [3, 2, 3, 2]
    assert result.acceptance_per_position == [0.7, 0.5, 0.2]
    assert 1 + sum(result.acceptance_per_position) == pytest.approx(result.tau)
    assert result.summary() == {
        "tau": 2.4,
        "acceptance_per_position": [0.7, 0.5, 0.2],
        "tokens_per_second": 10.0,
    }


def test_the_order_of_answers_does_not_matter() -> None:
    """A shorter histogram after a longer one adds up as well."""
    result = ArmResult()
    result.add(answer(steps=1, histogram=(0, 0, 1)))
    result.add(answer(steps=1, histogram=(1,)))
    assert result.histogram == [1, 0, 1]


def test_nothing_measured_is_null() -> None:
    """No division by zero where an arm never drafted or nothing was asked."""
    assert ArmResult().summary() == {"tau": None, "acceptance_per_position": [], "tokens_per_second": None}
    result = ArmResult()
    result.add(answer(steps=0, histogram=()))
    assert (result.tau, result.acceptance_per_position, result.tokens_per_second) == (None, [], 20.0)
