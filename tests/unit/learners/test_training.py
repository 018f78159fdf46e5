"""Training is a function of plan and sequences, whatever interrupts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import torch

from adaptive.speculator.objective import Objective
from learners.adapters import write_challenger
from learners.drafter import load_drafter
from learners.features import Assembler
from learners.records import UpdatePlan
from learners.testing import HIDDEN, LAYERS, TinyModels, TinyTenant
from learners.training import CHECKPOINT_STEPS, Trained, Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.speculator.sequences import TracedSequence
    from collectors.store import TensorStore

REQUESTS = 12


class KilledError(Exception):
    """Stands for a kill at a step."""


@pytest.fixture
def sequences(models: TinyModels, store: TensorStore) -> dict[int, TracedSequence]:
    """A tenant's requests by number."""
    assembler = Assembler(store, LAYERS, HIDDEN, None)
    tenant = TinyTenant(models, store, "acme")
    return {number: assembler.assemble(tenant.request()) for number in range(REQUESTS)}


def train(
    models: TinyModels,
    sequences: dict[int, TracedSequence],
    checkpoint: Path,
    *,
    seed: int = 3,
    warm_start: dict[str, torch.Tensor] | None = None,
    learning_rate: float = 1e-2,
    kill_at: int | None = None,
    precision: str = "float32",
    objective: str = "kl",
) -> tuple[Trained, UpdatePlan]:
    """Train twelve steps."""
    drafter = load_drafter(models.target, models.turbo, precision)
    plan = UpdatePlan(
        tenant="acme",
        ordinal=1,
        version=1,
        seed=seed,
        training=tuple(sequences),
        fresh=tuple(sequences),
        holdout=(),
        warm_start=None,
        tokens=40 * REQUESTS,
        token_steps=12 * 120,
        batch_tokens=120,
        learning_rate=learning_rate,
        rank=8,
        unroll_depth=2,
        precision=precision,
        target_sha256=drafter.target_sha256,
        turbo_sha256=drafter.turbo_sha256,
        traces_until=1.0,
        first_offset={},
        last_offset={},
        objective=objective,
        rejected_weight=1.0,
    )

    def on_step(step: int, steps: int) -> None:
        assert steps == 12
        if step == kill_at:
            raise KilledError

    trained = Trainer(drafter).train(
        plan,
        dict.fromkeys(sequences, 40),
        load=sequences.__getitem__,
        warm_start=warm_start,
        checkpoint=checkpoint,
        on_step=on_step,
    )
    return trained, plan


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("objective", Objective)
def test_equal_seed_and_traces_give_equal_bytes(
    models: TinyModels,
    sequences: dict[int, TracedSequence],
    tmp_path: Path,
    precision: str,
    objective: Objective,
) -> None:
    """In every precision and objective, two runs write one file, another seed another; the loss falls."""
    files = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        trained, plan = train(
            models,
            sequences,
            tmp_path / f"{name}.checkpoint",
            seed=seed,
            precision=precision,
            objective=objective,
        )
        write_challenger(
            tmp_path / name / "adapter.safetensors", trained.tensors, msgspec.structs.replace(plan, seed=0)
        )
        files.append((tmp_path / name / "adapter.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]
    assert trained.losses[-1] < trained.losses[0]
    assert trained.peak_bytes > 1 << 20


@pytest.mark.parametrize("kill_at", [2, CHECKPOINT_STEPS + 2, 2 * CHECKPOINT_STEPS])
def test_a_killed_run_ends_with_the_bytes_of_one_that_was_not(
    models: TinyModels, sequences: dict[int, TracedSequence], tmp_path: Path, kill_at: int
) -> None:
    """Going on from the checkpoint gives exactly the tensors and losses of an uninterrupted run."""
    whole, _ = train(models, sequences, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(models, sequences, tmp_path / "killed", kill_at=kill_at)
    resumed, _ = train(models, sequences, tmp_path / "killed")
    assert resumed.losses == whole.losses
    assert all(torch.equal(resumed.tensors[name], whole.tensors[name]) for name in whole.tensors)


def test_a_checkpoint_spares_the_steps_before_it(
    models: TinyModels, sequences: dict[int, TracedSequence], tmp_path: Path
) -> None:
    """A run killed after a checkpoint does not run its steps again."""
    with pytest.raises(KilledError):
        train(models, sequences, tmp_path / "killed", kill_at=CHECKPOINT_STEPS + 1)
    # A run that began at step 0 would be killed there.
    train(models, sequences, tmp_path / "killed", kill_at=0)


@pytest.mark.parametrize("damage", [b"", b"not safetensors at all"])
def test_a_damaged_or_foreign_checkpoint_costs_a_fresh_start_only(
    models: TinyModels, sequences: dict[int, TracedSequence], tmp_path: Path, damage: bytes
) -> None:
    """An unreadable checkpoint, and one of another plan, are left aside."""
    whole, _ = train(models, sequences, tmp_path / "whole")
    (tmp_path / "damaged").write_bytes(damage)
    again, _ = train(models, sequences, tmp_path / "damaged")
    other, _ = train(models, sequences, tmp_path / "damaged", seed=9)
    assert again.losses == whole.losses
    assert other.losses != whole.losses


def test_a_warm_start_begins_where_its_version_ended(
    models: TinyModels, sequences: dict[int, TracedSequence], tmp_path: Path
) -> None:
    """Starting from a trained adapter, the first loss is about the last one of its training."""
    first, _ = train(models, sequences, tmp_path / "first")
    second, _ = train(models, sequences, tmp_path / "second", warm_start=first.tensors)
    assert second.losses[0] < first.losses[0] - 0.5 * (first.losses[0] - first.losses[-1])


def test_a_loss_that_is_not_finite_stops_training(
    models: TinyModels, sequences: dict[int, TracedSequence], tmp_path: Path
) -> None:
    """Starting from values that blow up raises, and names the setting to lower."""
    first, _ = train(models, sequences, tmp_path / "first")
    blown = {name: tensor * 1e30 for name, tensor in first.tensors.items()}
    with pytest.raises(ArithmeticError, match="learning_rate"):
        train(models, sequences, tmp_path / "blown", warm_start=blown)
