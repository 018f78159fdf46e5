"""Requests, adapters and counters of an engine, without the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from adaptive.contracts import Arm
from adaptive.engine.recorder import FeatureRows
from adaptive.engine.request import RequestPlan
from adaptive.engine.slots import NoFreeSlotError
from adaptive.engine.speculation import Drafted
from adaptive.engine.state import MAX_PAUSES, feature_rows
from adaptive.speculator.adapter import AdapterError
from tests.unit.engine.conftest import TARGET, TURBO
from tests.unit.engine.harness import EOS, Harness

if TYPE_CHECKING:
    from adaptive.speculator.config import SpeculatorConfig
    from tests.unit.engine.conftest import AdapterFiles


@pytest.fixture
def harness(speculator: SpeculatorConfig, adapter_file: AdapterFiles) -> Harness:
    """An engine state of two adapter slots."""
    return Harness(speculator, adapter_file)


def test_without_an_adapter_turbo_drafts(harness: Harness) -> None:
    """A tenant whose adapter is not resident is served by turbo, and counted as turbo."""
    harness.begin("1")
    assert harness.placed("1") == (Arm.TURBO, 0, 0)
    assert harness.counted("acme", Arm.TURBO, 0).requests == 1


def test_a_request_keeps_the_version_it_was_admitted_with(harness: Harness) -> None:
    """A commit changes nothing for a request in flight, neither its row nor the row's values."""
    old = harness.put("acme", 1)
    harness.begin("1")
    new = harness.put("acme", 2, 0.5)
    harness.begin("2")
    assert harness.placed("1") == (Arm.ADAPTER, old, 1)
    assert harness.placed("2") == (Arm.ADAPTER, new, 2)
    assert (harness.row(old), harness.row(new)) == (1.0, 2.0)
    assert (harness.buffers.weight[old], harness.buffers.weight[new]) == (1.0, 0.5)
    assert not harness.buffers.get_buffer("o_proj_a")[0].any()


@pytest.mark.parametrize("arm", [Arm.TURBO, Arm.OFF])
def test_control_requests_use_no_slot(harness: Harness, arm: Arm) -> None:
    """Control groups run without the adapter that serves their tenant."""
    harness.put("acme", 1)
    harness.begin("1", arm=arm)
    assert harness.placed("1") == (arm, 0, 0)
    assert harness.state.requests["1"].lookahead == (0 if arm is Arm.OFF else 4)


def test_begin_again_changes_nothing(harness: Harness) -> None:
    """A request resumed after a preemption keeps its slot, and is counted once."""
    harness.put("acme", 1)
    harness.begin("1")
    harness.put("acme", 2)
    harness.begin("1")
    assert harness.placed("1")[2] == 1
    assert harness.counted("acme", Arm.ADAPTER, 1).requests == 1
    assert harness.counted("acme", Arm.ADAPTER, 2).requests == 0


def test_finish_frees_a_superseded_slot(harness: Harness) -> None:
    """Two slots serve any number of versions as long as old requests end."""
    for version in range(1, 5):
        harness.put("acme", version)
        harness.begin(str(version))
        harness.state.finish(str(version - 1))
    assert [slot["version"] for slot in harness.state.info()["slots"]] == [4]
    assert harness.state.info()["requests"] == 1


def test_finish_of_an_unknown_request_is_nothing(harness: Harness) -> None:
    """VLLM may name requests that were aborted before they ran."""
    harness.state.finish("never seen")


def test_a_full_table_refuses_the_commit_and_harms_nothing(harness: Harness) -> None:
    """The two rows in use keep their values, weights and requests."""
    for tenant in ("a", "b"):
        harness.put(tenant, 1, 0.75)
        harness.begin(tenant, tenant)
    before = [buffer.clone() for buffer in harness.buffers.buffers()]
    info = harness.state.info()
    with pytest.raises(NoFreeSlotError, match="tenant 'c'"):
        harness.put("c", 9)
    assert all(torch.equal(*pair) for pair in zip(before, harness.buffers.buffers(), strict=True))
    assert harness.state.info() == info


def test_a_commit_of_nothing_staged_evicts_nobody(harness: Harness) -> None:
    """The file is looked at before a row is taken from another tenant."""
    for tenant in ("a", "b"):
        harness.put(tenant, 1)
    with pytest.raises(AdapterError, match="c@1 is absent"):
        harness.state.commit("c", 1, 1.0, move=False)
    assert [slot["tenant"] for slot in harness.state.info()["slots"]] == ["a", "b"]


def test_move_takes_adapter_requests_along(harness: Harness) -> None:
    """The tenant's adapter requests change rows, its controls and other tenants' requests do not."""
    harness.begin("early")
    old = harness.put("acme", 1)
    harness.begin("1")
    harness.begin("control", arm=Arm.TURBO)
    harness.begin("off", arm=Arm.OFF)
    harness.begin("other", "other")
    new = harness.put("acme", 2, move=True)
    assert new != old
    assert harness.placed("1") == harness.placed("early") == (Arm.ADAPTER, new, 2)
    assert harness.placed("control") == (Arm.TURBO, 0, 0)
    assert harness.placed("off") == (Arm.OFF, 0, 0)
    assert harness.placed("other") == (Arm.TURBO, 0, 0)
    slots = harness.state.info()["slots"]
    assert [(slot["version"], slot["requests"]) for slot in slots] == [(2, 2)]
    for request_id in ("1", "early"):
        harness.state.finish(request_id)
    assert harness.state.slots.occupied()[0].requests == 0


def test_drafts_in_flight_are_credited_to_who_made_them(harness: Harness) -> None:
    """After a move, the step that verifies the old version's drafts counts for the old version."""
    harness.put("acme", 1)
    harness.begin("1", plan=RequestPlan(tenant="acme", arm=Arm.ADAPTER, learn=True))
    request = harness.state.requests["1"]
    harness.step("1", [], [9])
    harness.state.drafted([request], [Drafted([20, 21], Arm.ADAPTER, 1, [1.0, 0.5], early=True)])
    harness.put("acme", 2, move=True)
    harness.step("1", [20, 21], [20, 30])
    harness.state.drafted([request], [Drafted([40], Arm.ADAPTER, 2, [3.0], early=False)])
    harness.step("1", [40], [50])
    assert harness.counted("acme", Arm.ADAPTER, 1).accepted == 1
    assert harness.counted("acme", Arm.ADAPTER, 2).drafted == 1
    harness.state.finish("1")
    steps = harness.publisher.segments[0].record.steps
    assert [(step.version, step.confidences) for step in steps] == [(1, [1.0, 0.5]), (2, [3.0])]


@pytest.mark.parametrize("move", [False, True])
def test_retire_sends_requests_back_to_turbo(harness: Harness, move: bool) -> None:
    """New requests at once; requests in flight only where asked."""
    slot = harness.put("acme", 1)
    harness.begin("1")
    harness.state.retire("acme", move=move)
    harness.begin("2")
    assert harness.placed("2") == (Arm.TURBO, 0, 0)
    assert harness.placed("1") == ((Arm.TURBO, 0, 0) if move else (Arm.ADAPTER, slot, 1))
    harness.state.finish("1")
    assert harness.state.info()["slots"] == []


def test_set_weight_reaches_the_row(harness: Harness) -> None:
    """The tenant's current row changes, a tenant without one is no error."""
    slot = harness.put("acme", 1)
    harness.state.set_weight("acme", 0.25)
    harness.state.set_weight("nobody", 0.5)
    assert harness.buffers.weight[slot] == 0.25
    assert harness.state.info()["slots"][0]["weight"] == 0.25


def test_record_counts_tokens_steps_and_time(harness: Harness) -> None:
    """Prefill counts time, a step without drafts counts tokens, a verify step counts acceptance."""
    harness.begin("1", arm=Arm.TURBO)
    harness.step("1", [], [])
    harness.step("1", [], [9])
    harness.step("1", [20, 21, 22, 23], [20, 21, 30])
    totals = harness.counted("acme", Arm.TURBO, 0)
    assert (totals.verify_steps, totals.drafted, totals.accepted, totals.emitted) == (1, 4, 2, 4)
    assert totals.accepted_per_position == [1, 1, 0, 0]
    assert totals.engine_seconds == 1.5


def test_only_consenting_requests_are_recorded(harness: Harness) -> None:
    """`learn` off, or capture switched off: nothing is kept, so nothing can leave the process."""
    harness.begin("no")
    harness.state.publisher = None
    harness.begin("late", plan=RequestPlan(tenant="acme", learn=True))
    for request_id in ("no", "late"):
        assert harness.state.requests[request_id].recorder is None
        harness.step(request_id, [], [9])
        harness.state.finish(request_id)
    assert harness.publisher.segments == []


def test_a_finished_request_is_published(harness: Harness) -> None:
    """The record names the engine's request id, the sampling parameters and the fingerprints."""
    plan = RequestPlan(tenant="acme", learn=True)
    harness.begin("1", plan=plan, temperature=0.5, top_p=0.9, top_k=-1, seed=3, max_tokens=2)
    harness.step("1", [], [9])
    harness.step("1", [20, 21], [20, 21, 22])
    harness.state.finish("1")
    record = harness.publisher.segments[0].record
    assert (record.request_id, record.tenant, record.prompt_ids) == ("1", "acme", [5, 6, 7])
    assert record.output_ids == [9, 20]
    assert record.sampling.temperature == 0.5
    assert (record.sampling.top_p, record.sampling.top_k, record.sampling.seed) == (0.9, 0, 3)
    assert (record.target_sha256, record.turbo_sha256) == (TARGET, TURBO)
    assert record.finished


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [9, EOS]),
        ({"ignore_eos": True}, [9, EOS, 8, 77, 4]),
        ({"stop_token_ids": [8]}, [9, EOS]),
        ({"ignore_eos": True, "stop_token_ids": [8]}, [9, EOS, 8]),
    ],
)
def test_traces_end_at_the_stop_tokens_of_the_request(
    harness: Harness, sampling: dict[str, Any], expected: list[int]
) -> None:
    """End of sequence and the request's own stop ids end the record as they end the answer."""
    harness.begin("1", plan=RequestPlan(tenant="acme", learn=True), max_tokens=50, **sampling)
    harness.step("1", [9, EOS, 8, 77], [9, EOS, 8, 77, 4])
    harness.state.finish("1")
    assert harness.publisher.segments[0].record.output_ids == expected


def test_a_request_without_output_publishes_nothing(harness: Harness) -> None:
    """A prompt alone teaches nothing and stays in the process."""
    harness.begin("1", plan=RequestPlan(tenant="acme", learn=True))
    harness.step("1", [], [])
    harness.state.finish("1")
    assert harness.publisher.segments == []


def test_long_requests_are_published_in_segments(harness: Harness) -> None:
    """A full segment goes out with the next step; the rest follows when the request ends."""
    harness.begin("1", plan=RequestPlan(tenant="acme", learn=True, features=True), max_tokens=None)
    request = harness.state.requests["1"]
    layer, last = torch.randn(300, 4), torch.randn(300, 2)
    for number in range(260):
        harness.step("1", [3], [100 + number])
        harness.state.keep_features(request, feature_rows(number, number, 1, [layer, layer], last))
    assert [len(segment.record.steps) for segment in harness.publisher.segments] == [256]
    harness.state.finish("1")
    first, second = harness.publisher.segments
    assert (first.record.finished, second.record.finished) == (False, True)
    assert (second.record.output_start, len(second.record.steps)) == (256, 4)
    assert second.rows[0].start == 256
    assert torch.equal(torch.cat([row.last_hidden for row in (*first.rows, *second.rows)]), last[:260])


def test_the_last_segment_is_the_finished_one(harness: Harness) -> None:
    """A request that ends with a full segment has no empty one behind it, and its last one says finished."""
    harness.begin("1", plan=RequestPlan(tenant="acme", learn=True), max_tokens=None)
    for _ in range(256):
        harness.step("1", [3], [9])
    harness.state.finish("1")
    assert [segment.record.finished for segment in harness.publisher.segments] == [True]


def test_feature_rows_are_copies_of_the_requests_rows() -> None:
    """The step's buffers are reused by the next step; layers are concatenated in order."""
    layers = [torch.arange(12.0).view(6, 2), -torch.arange(12.0).view(6, 2)]
    last = torch.arange(6.0).view(6, 1)
    rows = feature_rows(40, 2, 3, layers, last)
    for tensor in (*layers, last):
        tensor.zero_()
    assert rows.start == 40
    assert rows.features.tolist() == [[4, 5, -4, -5], [6, 7, -6, -7], [8, 9, -8, -9]]
    assert rows.last_hidden.tolist() == [[2], [3], [4]]


def test_pauses_are_kept_newest_last_and_bounded(harness: Harness) -> None:
    """Each commit adds one pause; the list never exceeds what telemetry may carry."""
    harness.put("acme", 1)
    pauses = harness.state.info()["pauses_ms"]
    assert len(pauses) == 1
    assert 0 < pauses[0] < 1000
    harness.state.pauses.extend(float(number) for number in range(MAX_PAUSES + 5))
    pauses = harness.state.info()["pauses_ms"]
    assert (len(pauses), pauses[-1]) == (MAX_PAUSES, MAX_PAUSES + 4.0)


@pytest.mark.parametrize(
    ("sampling", "fixed"),
    [({"seed": 5}, True), ({"seed": 5, "temperature": 0.0}, False), ({}, False)],
)
def test_seeded_sampling_drafts_the_same_every_time(
    harness: Harness, sampling: dict[str, Any], fixed: bool
) -> None:
    """Its random numbers are drawn per draft, so nothing measured or learned may change its drafts."""
    harness.begin("1", **sampling)
    assert harness.state.requests["1"].fixed is fixed


def test_info_is_plain_values(harness: Harness) -> None:
    """What crosses to the endpoint converts back into the contract's structs."""
    harness.put("acme", 1, 0.5)
    harness.begin("1")
    info = harness.state.info()
    assert info["slots"] == [{"slot": 1, "tenant": "acme", "version": 1, "weight": 0.5, "requests": 1}]
    assert info["counters"][0]["arm"] == "adapter"
    assert info["capture"] == {"published": 0}


def test_what_the_sampler_leaves_out_is_not_recorded(harness: Harness) -> None:
    """A request is recorded whole or not at all, and its features are kept only where both say so."""
    plan = RequestPlan(tenant="acme", arm=Arm.TURBO, learn=True, features=True)
    harness.begin("full", plan=plan)
    harness.publisher.takes_features = False
    harness.begin("bare", plan=plan)
    harness.publisher.takes_requests = False
    harness.begin("none", plan=plan)
    recorded = {name: request.recorder is not None for name, request in harness.state.requests.items()}
    featured = {name: request.features for name, request in harness.state.requests.items()}
    assert recorded == {"full": True, "bare": True, "none": False}
    assert featured == {"full": True, "bare": False, "none": False}
    for name in recorded:
        harness.step(name, [1], [1, 2])
        harness.state.finish(name)
    assert [segment.record.request_id for segment in harness.publisher.segments] == ["full", "bare"]


def test_features_in_flight_are_bounded(harness: Harness) -> None:
    """A prompt too long for the queue loses its features, not its trace; meanwhile others begin without."""
    plan = RequestPlan(tenant="acme", arm=Arm.TURBO, learn=True, features=True)
    harness.publisher.most_row_bytes = 1000
    harness.begin("long", plan=plan)
    long = harness.state.requests["long"]

    def rows(start: int, count: int) -> FeatureRows:
        return FeatureRows(start, torch.zeros(count, 24), torch.zeros(count, 8))

    harness.state.keep_features(long, rows(0, 7))
    assert long.features
    harness.publisher.most_row_bytes = 800
    harness.begin("next", plan=plan)
    assert not harness.state.requests["next"].features
    harness.state.keep_features(long, rows(7, 1))
    assert not long.features
    harness.begin("after", plan=plan)
    assert harness.state.requests["after"].features
    harness.step("long", [1], [1, 2])
    harness.state.finish("long")
    assert harness.publisher.segments[0].rows == ()
