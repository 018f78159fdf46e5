"""A tenant's time series and the learner's lag, through the API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from adaptive.contracts import Arm, ArmCounters
from tests.unit.controller.conftest import START, counters

if TYPE_CHECKING:
    from tests.unit.controller.conftest import Bench


def traffic(bench: Bench, minutes: int, adapter: int = 150, turbo: int = 100) -> None:
    """Act as an engine that reports once a minute: 100 steps of each arm a minute, so many accepted."""
    for minute in range(1, minutes + 1):
        bench.clock.now = START + 60 * minute
        reports: list[ArmCounters] = []
        for arm, version, accepted in ((Arm.ADAPTER, 1, adapter), (Arm.TURBO, 0, turbo)):
            count = counters(arm, version, 100 * minute, accepted * minute)
            reports.append(
                msgspec.structs.replace(
                    count,
                    verify_steps_by_context=[60 * minute, 40 * minute],
                    accepted_by_context=[accepted * minute, 0],
                )
            )
        bench.report(reports)


def test_a_series_shows_every_arm_by_position_and_context(bench: Bench) -> None:
    """Each point is what happened in its step: acceptance, tokens, positions, context buckets and lift."""
    bench.create()
    traffic(bench, 10)
    shown = bench.request("GET", f"/v1/tenants/acme/series?since={START}&until={bench.clock.now + 1}&step=60")
    assert shown["context_buckets"] == [1024, 4096, 16384, None]
    adapter, turbo = shown["data"]
    assert (adapter["arm"], adapter["version"], turbo["arm"]) == ("adapter", 1, "turbo")
    assert len(adapter["points"]) == 10
    point = adapter["points"][3]
    assert (point["verify_steps"], point["accepted"], point["tokens"]) == (100, 150, 250)
    assert point["tau"] == pytest.approx(2.5)
    assert point["acceptance"] == pytest.approx(150 / 400)
    assert point["acceptance_per_position"] == [1.5, 0.0]
    assert point["by_context"] == [
        {"verify_steps": 60, "tau": pytest.approx(3.5)},
        {"verify_steps": 40, "tau": 1.0},
    ]
    assert len(shown["lift"]) == 10
    assert shown["lift"][0]["tau"] == pytest.approx(2.5 / 2.0)
    assert shown["lift"][0]["goodput"] == pytest.approx(2.5 / 2.0)


@pytest.mark.parametrize("step", [5, 60, 300, 3600])
def test_no_step_loses_a_count(bench: Bench, step: int) -> None:
    """Fine and coarse series add up to the same traffic."""
    bench.create()
    traffic(bench, 20)
    since = START if step > 5 else START + 60
    shown = bench.request("GET", f"/v1/tenants/acme/series?since={since}&until={START + 1201}&step={step}")
    assert shown["step"] == step
    for series in shown["data"]:
        assert sum(point["verify_steps"] for point in series["points"]) == 2000


def test_fine_samples_go_after_a_day_and_history_stays(bench: Bench) -> None:
    """Pruning leaves the five-minute buckets of yesterday, which a wide step still shows."""
    bench.create()
    traffic(bench, 5)
    bench.clock.now += 2 * 86_400
    bench.control.policy._pruned_at = 0.0
    bench.work()
    window = f"since={START}&until={START + 301}"
    assert bench.request("GET", f"/v1/tenants/acme/series?{window}&step=60")["data"] == []
    assert len(bench.request("GET", f"/v1/tenants/acme/series?{window}&step=300")["data"]) == 2


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("step=7", "step"),
        ("since=0&until=1000000&step=5", "step"),
        ("since=20&until=10", "since"),
        ("since=nan", "since"),
        ("until=-1", "until"),
        ("until=inf", "until"),
    ],
)
def test_an_impossible_stretch_is_refused_by_name(bench: Bench, query: str, field: str) -> None:
    """A series has a bounded number of points of a known width."""
    bench.create()
    problem = bench.request("GET", f"/v1/tenants/acme/series?{query}", status=422)
    assert problem["errors"][0]["field"] == field


def test_the_step_follows_the_stretch(bench: Bench) -> None:
    """Without a step a series has at most 120 points, however long."""
    bench.create()
    steps: list[Any] = [
        bench.request("GET", f"/v1/tenants/acme/series?since={START}&until={START + seconds}")["step"]
        for seconds in (600, 3600, 6 * 3600, 4 * 86_400, 30 * 86_400)
    ]
    assert steps == [5, 60, 300, 3600, 86_400]


def test_the_learner_shows_its_lag(bench: Bench) -> None:
    """Lag, updates due and what is trained come from the learner's status; without one the list is empty."""
    assert bench.request("GET", "/v1/learners")["data"] == []
    path = bench.control.learner_status
    path.parent.mkdir()
    status = {
        "state": "running",
        "updated_at": bench.clock.now - 5,
        "updates_due": 2,
        "tenants": {"acme": {"training": "training step 3/40"}, "other": {"training": "idle"}},
        "intake": {"lag": {"0": 5, "1": 7}, "behind_seconds": 1.5, "waiting": 3},
    }
    path.write_text(json.dumps(status))
    (item,) = bench.request("GET", "/v1/learners")["data"]
    assert (item["alive"], item["lag_records"], item["behind_seconds"], item["updates_due"]) == (
        True,
        12,
        1.5,
        2,
    )
    assert item["training"] == {"acme": "training step 3/40"}
    bench.clock.now += 120
    assert bench.request("GET", "/v1/learners")["data"][0]["alive"] is False
    path.write_text("{")
    assert bench.request("GET", "/v1/learners")["data"] == []
