"""How the benchmarks of learning read a curve, count rejections and extend a draft vocabulary."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch

from adaptive.speculator.evaluation import walk
from adaptive.speculator.head import Eagle3Head
from collectors.store import TensorStore
from learners.drafter import load_drafter
from learners.features import Assembler
from learners.testing import HIDDEN, LAYERS, VOCABULARY, TinyModels, TinyTenant, make_models
from tests.bench import adapters, figure, learning, losses
from tests.bench.material import LOOKAHEAD
from tests.bench.online import OnlineTenant, Step

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.speculator.sequences import TracedSequence


def step(requests: int, serving: float) -> Step:
    """An update after so many requests, turbo at 2.0."""
    return Step(requests, 100, 800, 1.0, 1 << 30, serving > 2.0, 0.1, 0.05, 2.0, serving, serving)


@pytest.fixture
def models(tmp_path: Path) -> TinyModels:
    """Tiny target and turbo."""
    return make_models(tmp_path / "models")


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    """An empty tensor store."""
    return TensorStore(f"file://{tmp_path}/store")


@pytest.fixture
def sequences(models: TinyModels, store: TensorStore) -> list[TracedSequence]:
    """A tenant's requests."""
    assembler, tenant = Assembler(store, LAYERS, HIDDEN, None), TinyTenant(models, store, "acme")
    return [assembler.assemble(tenant.request()) for _ in range(32)]


def test_updates_double_up_to_the_interval() -> None:
    """Early updates come often, later ones at the interval, and the last after all requests."""
    assert learning.update_points(60, 125, 500) == [60, 120, 240, 365, 490, 500]
    assert learning.update_points(60, 125, 50) == [50]


def test_tau_between_updates_is_that_of_what_serves() -> None:
    """Before the first update turbo serves, beyond the run nothing is known."""
    curve = [step(60, 2.2), step(120, 2.6)]
    assert [learning.tau_at(curve, at) for at in (10, 60, 100, 120, 121)] == [2.0, 2.2, 2.2, 2.6, None]


def test_requests_to_four_fifths_count_from_where_the_gain_stays() -> None:
    """An early peak that is lost again does not count; without a gain there is no such number."""
    curve = [step(60, 2.9), step(120, 2.5), step(240, 2.85), step(480, 3.0)]
    assert learning.requests_to_share(curve) == 240
    assert learning.requests_to_share([step(60, 2.0)]) is None


def test_recovery_counts_from_the_change_of_the_target() -> None:
    """Acceptance (tau - 1) is back once it is four fifths of what it was before the change."""
    change = msgspec.structs.replace(step(96, 2.2), token_steps=0)
    curve = [step(96, 3.0), change, step(144, 2.5), step(192, 2.7)]
    assert learning._recovery(curve) == {
        "tau before the change": 3.0,
        "tau right after the change": 2.2,
        "requests to 80 % of the acceptance before": 96,
    }
    assert learning._recovery([step(96, 3.0)]) == {}


def test_equal_curves_give_an_equal_figure(tmp_path: Path) -> None:
    """The SVG holds no date and no random ids, so a rerun changes it only where the numbers changed."""
    for name in ("a", "b"):
        figure.draw(tmp_path / name / "learning.svg", {"tools": [step(60, 2.2), step(120, 2.0)]}, vertical=60)
    drawn = [(tmp_path / name / "learning.svg").read_bytes() for name in ("a", "b")]
    assert drawn[0] == drawn[1]
    assert b"<svg" in drawn[0]


def test_rejections_are_those_of_the_walk(models: TinyModels, sequences: list[TracedSequence]) -> None:
    """Marked and counted are the verify steps that accepted fewer drafts than asked for."""
    drafter = load_drafter(models.target, models.turbo, "float32")
    total, outside = adapters.rejections(drafter.head, None, sequences)
    walked = walk(drafter.head, None, sequences, LOOKAHEAD)
    assert total == walked.verify_steps - walked.accepted_per_position[-1] > 0
    assert outside == 0  # the tiny turbo drafts every token
    marked = losses.mark_rejections(drafter, sequences)
    assert sum(int(item.rejected.sum()) for item in marked if item.rejected is not None) == total


def test_an_extended_drafter_drafts_what_it_could_not(
    models: TinyModels, sequences: list[TracedSequence]
) -> None:
    """A token that is not in the draft vocabulary causes rejections; with the extension it causes none."""
    drafter = load_drafter(models.target, models.turbo, "float32")
    head = drafter.head
    missing = int(sequences[0].token_ids[-3])
    kept = torch.tensor([token for token in range(VOCABULARY) if token != missing])
    smaller = Eagle3Head(dataclasses.replace(head.config, draft_vocab_size=len(kept)), head.embedding)
    state = {name: value for name, value in head.state_dict().items() if name not in {"d2t", "t2d"}}
    smaller.load_state_dict(state | {"lm_head.weight": head.lm_head.weight[kept]}, strict=False)
    smaller.set_draft_vocabulary(kept)
    drafter = dataclasses.replace(drafter, head=smaller, target_rows=drafter.target_rows[kept])
    assert adapters.rejections(smaller, None, sequences)[1] > 0
    larger = adapters.extended(drafter, sequences, 1)
    assert bool(larger.head.t2d[missing])
    assert adapters.rejections(larger.head, None, sequences)[1] == 0
    assert torch.equal(larger.target_rows, models.embedding)


def test_a_tenant_goes_on_where_it_was(
    models: TinyModels, sequences: list[TracedSequence], tmp_path: Path
) -> None:
    """A run that was interrupted between two updates ends with the steps of one that was not."""
    drafter = load_drafter(models.target, models.turbo, "float32")
    found = []
    for name in ("whole", "interrupted"):
        tenant = OnlineTenant("acme", drafter, sequences.__getitem__, tmp_path / name, 600)
        for at in (20, 32):
            if name == "interrupted":
                tenant = OnlineTenant("acme", drafter, sequences.__getitem__, tmp_path / name, 600)
            tenant.arrive(at)
            tenant.update(sequences[:4])
        found.append([(one.requests, one.challenger, one.serving, one.published) for one in tenant.steps])
    assert found[0] == found[1]
    assert len(found[0]) >= 1
