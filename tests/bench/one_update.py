"""One update of the learner's own trainer on given requests, for benchmarks that compare ways to train."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive.settings import Settings
from adaptive.speculator.adapter import Adapter, AdapterConfig
from learners.records import UpdatePlan
from learners.selection import batch_tokens, token_steps
from learners.training import Trainer
from tests.bench.material import answer_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.speculator.sequences import TracedSequence
    from learners.drafter import Drafter
    from learners.training import Trained


def make_plan(drafter: Drafter, sequences: Sequence[TracedSequence], **changes: object) -> UpdatePlan:
    """A first update on these requests with the default settings, apart from `changes`."""
    settings = Settings()
    tokens = answer_tokens(sequences)
    numbers = tuple(range(len(sequences)))
    budget = token_steps(tokens, 0, settings.update_token_steps)
    values: dict[str, object] = {
        "tenant": "bench",
        "ordinal": 1,
        "version": 1,
        "seed": 0,
        "training": numbers,
        "fresh": numbers,
        "holdout": (),
        "warm_start": None,
        "tokens": tokens,
        "token_steps": budget,
        "batch_tokens": batch_tokens(budget),
        "learning_rate": settings.learning_rate,
        "rank": settings.rank,
        "unroll_depth": settings.unroll_depth,
        "precision": drafter.precision,
        "target_sha256": drafter.target_sha256,
        "turbo_sha256": drafter.turbo_sha256,
        "traces_until": 0.0,
        "first_offset": {},
        "last_offset": {},
        "objective": settings.objective,
        "rejected_weight": settings.rejected_weight,
    }
    return UpdatePlan(**(values | changes))  # type: ignore[arg-type]  # fields by name


def run(drafter: Drafter, sequences: Sequence[TracedSequence], plan: UpdatePlan) -> tuple[Adapter, Trained]:
    """Train; the adapter and how training went."""
    with tempfile.TemporaryDirectory() as scratch:
        trained = Trainer(drafter).train(
            plan,
            {number: len(item.token_ids) - item.answer_start for number, item in enumerate(sequences)},
            load=sequences.__getitem__,
            warm_start=None,
            checkpoint=Path(scratch) / "checkpoint",
            on_step=lambda *_: None,
        )
    adapter = Adapter(AdapterConfig(rank=plan.rank), drafter.head.config)
    adapter.load_tensors(trained.tensors)
    return adapter, trained
