"""What the target cannot have said is not learned from; what it can have said, is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from adaptive.contracts import Arm, SamplingSummary, TraceRecord, VerifyStep
from learners.drafter import load_drafter
from learners.features import Assembler, LeftOutError
from learners.plausibility import Plausibility
from learners.testing import HIDDEN, LAYERS, VOCABULARY, TinyModels, TinyTenant

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.store import TensorStore


@pytest.fixture
def check(models: TinyModels, store: TensorStore) -> Callable[[list[TraceRecord]], None]:
    """Assembles a request and checks it."""
    drafter = load_drafter(models.target, models.turbo, "float32")
    plausibility = Plausibility(drafter.target_rows, drafter.head.draft_token_ids)
    assembler = Assembler(store, LAYERS, HIDDEN, None)
    return lambda records: plausibility.check(records, assembler.assemble(records))


def randomised(records: list[TraceRecord], share: float, seed: int = 0) -> list[TraceRecord]:
    """The same features, with output tokens replaced by random ones."""
    draw = random.Random(seed)  # noqa: S311  # reproducible on purpose
    return [
        msgspec.structs.replace(
            record,
            sampling=SamplingSummary(temperature=0.7),
            output_ids=[
                draw.randrange(VOCABULARY) if draw.random() < share else token for token in record.output_ids
            ],
        )
        for record in records
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_what_the_target_wrote_is_plausible(
    models: TinyModels, store: TensorStore, check: Callable[[list[TraceRecord]], None], temperature: float
) -> None:
    """Honest requests pass at every temperature, the tenth of jumps in them included."""
    tenant = TinyTenant(models, store, "acme")
    for _ in range(20):
        records = tenant.request(segments=2)
        sampling = SamplingSummary(temperature=temperature)
        check([msgspec.structs.replace(record, sampling=sampling) for record in records])


def test_random_text_is_plausible_where_the_target_is_undecided(
    models: TinyModels, store: TensorStore, check: Callable[[list[TraceRecord]], None]
) -> None:
    """A tenant whose text is random is not accused: any token may come from a flat distribution."""
    tenant = TinyTenant(models, store, "dice", jumps=1.0)
    for _ in range(20):
        check(tenant.request())


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_random_tokens_reported_as_accepted_are_left_out(
    models: TinyModels, store: TensorStore, check: Callable[[list[TraceRecord]], None], share: float
) -> None:
    """Outputs that the hidden states before them do not allow are refused, four random tokens of five too."""
    tenant = TinyTenant(models, store, "mallory")
    for number in range(20):
        with pytest.raises(LeftOutError, match="implausible") as caught:
            check(randomised(tenant.request(), share, number))
        assert caught.value.reason == "implausible"


def test_a_little_noise_is_left_to_the_gate(
    models: TinyModels, store: TensorStore, check: Callable[[list[TraceRecord]], None]
) -> None:
    """A tenth of random tokens, as penalties or forced formats make them, does not cost the request."""
    tenant = TinyTenant(models, store, "noisy")
    for number in range(20):
        check(randomised(tenant.request(), 0.1, number))


def test_accepted_drafts_must_be_in_the_output(
    models: TinyModels, store: TensorStore, check: Callable[[list[TraceRecord]], None]
) -> None:
    """A step that accepts drafts which were not emitted contradicts itself; one cut by the end does not."""
    (record,) = TinyTenant(models, store, "acme").request()
    last = len(record.output_ids) - 1
    cut = VerifyStep(Arm.TURBO, 0, last, [record.output_ids[last], 5, 6], 3, [0.0] * 3)
    check([msgspec.structs.replace(record, steps=[cut])])
    wrong = VerifyStep(
        Arm.TURBO, 0, 4, [record.output_ids[4], (record.output_ids[5] + 1) % 256], 2, [0.0, 0.0]
    )
    with pytest.raises(LeftOutError, match="contradictory"):
        check([msgspec.structs.replace(record, steps=[wrong])])


def test_a_short_answer_cannot_tell(
    models: TinyModels, store: TensorStore, check: Callable[[list[TraceRecord]], None]
) -> None:
    """Five tokens are too few to accuse anybody."""
    check(randomised(TinyTenant(models, store, "acme").request(answer=5), 1.0))
