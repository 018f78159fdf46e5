"""What one step drafts, from the first pass to its drafts, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from adaptive.contracts import Arm
from adaptive.engine.config import EngineConfig
from adaptive.engine.request import RequestPlan
from adaptive.engine.state import ActiveRequest
from tests.unit.engine.harness import LOOKAHEAD, speculation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.engine.speculation import Drafted, Speculation

MOST = 8
CONFIG = EngineConfig(
    slots=2,
    rank=2,
    lookahead=LOOKAHEAD,
    target_sha256="",
    turbo_sha256="",
    tokenizer_sha256="",
    feature_layers=(1, 2, 3),
)
SURE, DOUBTFUL = 6.0, -4.0
TEXT = list(range(100, 140))


class Bench:
    """An engine's speculation and the requests that it serves."""

    def __init__(self, token_seconds: float = 0.001, **settings: bool) -> None:
        config = switched(CONFIG, **settings)
        self.speculation: Speculation = speculation(config, MOST, token_seconds)
        self.requests: dict[str, ActiveRequest] = {}

    def begin(self, name: str, prompt: Sequence[int] = (1, 2, 3), **plan: object) -> None:
        """Admit a request of turbo's."""
        made = RequestPlan(**{"tenant": "acme", "arm": Arm.TURBO, **plan})  # type: ignore[arg-type]  # by name
        request = ActiveRequest(made, made.arm, 0, 0, made.capped_lookahead(MOST), None, (made.arm, 0))
        request.fixed = made.fixed
        self.requests[name] = request
        self.speculation.begin(name, request, prompt, 0.0)

    def step(
        self, log_odds: Sequence[float], emitted: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[Drafted], int]:
        """One step in which each pass drafts with these log-odds for every row; drafts and passes run."""
        names = list(self.requests)
        emitted = emitted or [[7]] * len(names)
        step = self.speculation.start(list(self.requests.values()), names, emitted, 100.0)
        passes = 0
        for number, odds in enumerate(log_odds[: step.passes]):
            if number and not step.another():
                break
            tokens = [1000 + 10 * row + number for row in range(len(names))]
            (step.add if number else step.first)(tokens, [odds] * len(names))
            passes += 1
        return step.finish(), passes


def switched(config: EngineConfig, **changes: bool) -> EngineConfig:
    """The config with other switches."""
    return msgspec.structs.replace(config, **changes)


def test_sure_drafts_go_on_to_the_cap() -> None:
    """The model drafts as many tokens as its cap allows, not as the engine's maximum does."""
    bench = Bench()
    bench.begin("1")
    (made,), passes = bench.step([SURE] * MOST)
    assert passes == LOOKAHEAD
    assert made.tokens == [1000, 1001, 1002, 1003]
    assert (made.arm, made.version, made.confidences, made.early) == (Arm.TURBO, 0, [SURE] * 4, False)


def test_passes_end_where_the_next_draft_does_not_pay() -> None:
    """After a doubtful draft no pass more is run, and the doubtful draft is not verified either."""
    bench = Bench(token_seconds=0.02)
    bench.begin("1")
    (made,), passes = bench.step([SURE, DOUBTFUL, SURE, SURE])
    assert passes == 2
    assert made.tokens == [1000]
    assert made.early


def test_a_doubtful_first_draft_is_not_verified() -> None:
    """Lookahead zero is a choice of every step."""
    bench = Bench(token_seconds=0.05)
    bench.begin("1")
    (made,), passes = bench.step([DOUBTFUL] * 4)
    assert (made.tokens, passes, made.early) == ([], 1, True)


def test_without_the_stop_every_draft_is_verified() -> None:
    """The switch that benchmarks compare with."""
    bench = Bench(token_seconds=0.05, confidence_stop=False)
    bench.begin("1")
    (made,), passes = bench.step([DOUBTFUL] * 4)
    assert (len(made.tokens), passes) == (4, 4)


def test_a_fixed_request_makes_all_its_drafts_among_others_that_stop() -> None:
    """Its passes are run for it; rows that did not ask are cut by their own survival."""
    bench = Bench(token_seconds=0.05)
    bench.begin("fixed", fixed=True)
    bench.begin("free")
    (fixed, free), passes = bench.step([DOUBTFUL] * 4)
    assert passes == 4
    assert (len(fixed.tokens), fixed.early) == (4, False)
    assert free.tokens == []


def test_caps_of_requests_hold() -> None:
    """Zero drafts nothing at all, two at most two, and the passes follow the deepest."""
    bench = Bench(token_seconds=0.0)
    bench.begin("off", arm=Arm.OFF)
    bench.begin("zero", lookahead=0)
    bench.begin("two", lookahead=2)
    made, passes = bench.step([SURE] * 4)
    assert [len(one.tokens) for one in made] == [0, 0, 2]
    assert passes == 2


def test_a_partial_prefill_drafts_nothing() -> None:
    """It emitted no token that drafts could follow."""
    bench = Bench()
    bench.begin("prefill")
    made, passes = bench.step([SURE] * 4, [[]])
    assert (made[0].tokens, passes) == ([], 0)


def test_a_sure_copy_is_longer_than_the_models_drafts_and_saves_their_passes() -> None:
    """Text that repeats is copied up to the engine's maximum, by the n-gram arm."""
    bench = Bench()
    bench.begin("1", prompt=[*TEXT, 5, 6, *TEXT[:12]])
    (made,), passes = bench.step([DOUBTFUL] * 4, [TEXT[12:14]])
    assert made.arm is Arm.NGRAM
    assert made.tokens == TEXT[14 : 14 + MOST]
    assert (made.version, made.confidences, passes) == (0, [], 1)


@pytest.mark.parametrize("off", ["engine", "request"])
def test_the_ngram_arm_can_be_switched_off(off: str) -> None:
    """For the engine, or for a request."""
    bench = Bench(ngram=off != "engine")
    bench.begin("1", prompt=[*TEXT, 5, 6, *TEXT[:12]], ngram=off != "request")
    (made,), _ = bench.step([SURE] * 4, [TEXT[12:14]])
    assert made.arm is Arm.TURBO


def test_a_prediction_is_drafted_as_such() -> None:
    """What the client predicted is copied and counted as its own arm, the n-gram arm off or on."""
    bench = Bench(ngram=False)
    bench.begin("1", prediction=TEXT)
    (made,), _ = bench.step([DOUBTFUL] * 4, [TEXT[:6]])
    assert made.arm is Arm.PREDICTION
    assert made.tokens == TEXT[6 : 6 + MOST]


def test_copies_need_no_drafter() -> None:
    """While the load floor has the drafter off, a sure copy is drafted still."""
    bench = Bench()
    bench.begin("1", prompt=[*TEXT, 5, 6, *TEXT[:12]])
    step = bench.speculation.start(list(bench.requests.values()), ["1"], [TEXT[12:14]], 100.0)
    (made,) = bench.speculation.without_drafter(step)
    assert (made.arm, made.tokens) == (Arm.NGRAM, TEXT[14 : 14 + MOST])


def test_answers_enter_the_history_of_their_tenant_only() -> None:
    """A later request of the tenant copies from an earlier answer; another tenant's does not."""
    bench = Bench()
    bench.begin("1")
    bench.step([DOUBTFUL], [TEXT])
    bench.speculation.end("1", bench.requests.pop("1"))
    for tenant, arm in (("other", Arm.TURBO), ("acme", Arm.NGRAM)):
        bench.begin(tenant, tenant=tenant)
        (made,), _ = bench.step([DOUBTFUL], [TEXT[:12]])
        assert made.arm is arm
        bench.speculation.end(tenant, bench.requests.pop(tenant))


def test_a_forgotten_tenant_leaves_nothing() -> None:
    """Neither its history, nor its calibration, nor what its requests in flight emit afterwards."""
    bench = Bench()
    bench.begin("before")
    bench.begin("during")
    bench.step([DOUBTFUL], [TEXT, TEXT])
    bench.speculation.end("before", bench.requests.pop("before"))
    bench.speculation.forget("acme")
    bench.step([DOUBTFUL], [TEXT])
    bench.speculation.end("during", bench.requests.pop("during"))
    assert "acme" not in bench.speculation.choice.calibration.errors()
    bench.begin("after")
    (made,), _ = bench.step([DOUBTFUL], [TEXT[:12]])
    assert made.arm is not Arm.NGRAM


def test_an_adapter_that_drafts_worse_than_turbo_gives_way() -> None:
    """Its slot is left for turbo's row, and the drafts are turbo's."""
    bench = Bench()
    bench.begin("1", arm=Arm.ADAPTER, ngram=False)
    request = bench.requests["1"]
    request.slot, request.version = 1, 4
    seen = []
    for _ in range(4001):
        step = bench.speculation.start([request], ["1"], [[7]], 100.0)
        step.first([7 if step.slots == (0,) else 8], [SURE])
        (made,) = step.finish()
        seen.append((step.slots, made.arm, made.version))
    assert seen[0] == ((1,), Arm.ADAPTER, 4)
    assert seen[-1] == ((0,), Arm.TURBO, 0)
    assert set(seen) == {seen[0], seen[-1]}


def test_the_floor_counts_and_obeys_its_switch() -> None:
    """Steps and steps without the drafter are counted; fixed requests keep the drafter on."""

    def decide(bench: Bench, steps: int) -> list[bool]:
        decisions, off = [], False
        for _ in range(steps):
            step = bench.speculation.start(
                list(bench.requests.values()), list(bench.requests), [[7]] * len(bench.requests), 100.0
            )
            if not off:
                step.first([1000] * len(bench.requests), [DOUBTFUL] * len(bench.requests))
            step.finish()
            off = bench.speculation.decide(step, drafter_off=off)
            decisions.append(off)
        return decisions

    bench = Bench(token_seconds=0.1)
    bench.begin("1")
    assert any(decide(bench, 100))
    assert bench.speculation.info()["steps"] == 100
    assert 50 < bench.speculation.info()["floor_steps"] < 100
    unfloored = Bench(token_seconds=0.1, load_floor=False)
    unfloored.begin("1")
    assert not any(decide(unfloored, 100))
    fixed = Bench(token_seconds=0.1)
    fixed.begin("1", fixed=True)
    assert not any(decide(fixed, 100))
