"""Segments become one sequence with every row at its position, or are left out for a stated reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import torch
from safetensors.torch import load

from adaptive.contracts import Arm, VerifyStep
from learners.features import Assembler, LeftOutError, digest_of
from learners.testing import HIDDEN, LAYERS, TinyModels, TinyTenant, as_data

if TYPE_CHECKING:
    from adaptive.contracts import TraceRecord
    from collectors.store import TensorStore


def test_segments_join_to_the_same_sequence_as_one_record(models: TinyModels, store: TensorStore) -> None:
    """A request in three segments gives the tokens and rows that it gives in one."""
    assembler = Assembler(store, LAYERS, HIDDEN, None)
    whole, parts = (
        assembler.assemble(TinyTenant(models, store, name).request(segments=count))
        for name, count in (("whole", 1), ("parts", 3))
    )
    assert torch.equal(whole.token_ids, parts.token_ids)
    assert torch.equal(whole.features, parts.features)
    assert torch.equal(whole.last_hidden, parts.last_hidden)
    assert digest_of(whole) == digest_of(parts)


def test_rejected_drafts_mark_the_tokens_that_replaced_them(models: TinyModels, store: TensorStore) -> None:
    """A step's own token is marked where a draft stood in its place, in every segment, and nowhere else."""
    records = TinyTenant(models, store, "acme").request(prompt=8, answer=20, segments=2)
    steps = [
        VerifyStep(Arm.TURBO, 0, 0, [1, 2, 3], 1, [0.0] * 3),  # token 1 replaced the second draft
        VerifyStep(Arm.TURBO, 0, 2, [1, 2, 3], 3, [0.0] * 3),  # all accepted
        VerifyStep(Arm.OFF, 0, 6, [], 0, []),  # nothing drafted
        VerifyStep(Arm.TURBO, 0, 8, [1, 2, 3], 2, [0.0] * 3),  # the request ended within the step
    ]
    records = [msgspec.structs.replace(record, steps=steps) for record in records]
    sequence = Assembler(store, LAYERS, HIDDEN, None).assemble(records)
    assert sequence.rejected is not None
    assert sequence.rejected.nonzero().flatten().tolist() == [8 + 1, 8 + 10 + 1]


def test_a_gap_between_segments_leaves_the_request_out(models: TinyModels, store: TensorStore) -> None:
    """Rows that do not continue where the segment before ended would misalign everything after them."""
    first, second = TinyTenant(models, store, "acme").request(segments=2)
    assert second.features is not None
    shifted = msgspec.structs.replace(
        second,
        features=msgspec.structs.replace(second.features, feature_start=second.features.feature_start + 1),
    )
    with pytest.raises(LeftOutError, match="missing_features"):
        Assembler(store, LAYERS, HIDDEN, None).assemble([first, shifted])


def test_after_a_prefix_cache_hit_the_missing_prefix_is_left_out(
    models: TinyModels, store: TensorStore
) -> None:
    """Rows that begin in mid-prompt make a sequence that begins to draft no earlier than they do."""
    (record,) = TinyTenant(models, store, "acme").request(prompt=8, answer=20)
    full = Assembler(store, LAYERS, HIDDEN, None).assemble([record])
    assert record.features is not None
    tensors = full.features[5:-1], full.last_hidden[5:-1]
    stored = store.put(
        "acme",
        "features/late",
        {"features": as_data(tensors[0]), "last_hidden": as_data(tensors[1])},
    )
    late = msgspec.structs.replace(
        record.features, uri=stored.uri, sha256=stored.sha256, feature_start=5, rows=len(tensors[0])
    )
    sequence = Assembler(store, LAYERS, HIDDEN, None).assemble(
        [msgspec.structs.replace(record, features=late)]
    )
    assert sequence.feature_start == 5
    assert sequence.first_query == full.first_query == 7
    assert torch.equal(sequence.features, full.features[5:])


def test_absent_features_are_recomputed_where_that_is_allowed(models: TinyModels, store: TensorStore) -> None:
    """With `features: recomputed` the target runs over the tokens of a request recorded without features."""
    (record,) = TinyTenant(models, store, "acme").request(prompt=4, answer=6)
    seen: list[torch.Tensor] = []

    def recompute(token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(token_ids)
        return torch.ones(len(token_ids), len(LAYERS) * HIDDEN), torch.ones(len(token_ids), HIDDEN)

    assembler = Assembler(store, LAYERS, HIDDEN, recompute)
    sequence = assembler.assemble([msgspec.structs.replace(record, features=None)])
    assert seen[0].tolist() == record.prompt_ids + record.output_ids
    assert sequence.feature_start == 0
    assert bool((sequence.features == 1).all())


def test_rows_missing_at_the_end_cut_the_text(models: TinyModels, store: TensorStore) -> None:
    """Tokens beyond the last row cannot be judged, so the sequence ends one token after it."""
    (record,) = TinyTenant(models, store, "acme").request(prompt=8, answer=20)
    full = Assembler(store, LAYERS, HIDDEN, None).assemble([record])
    assert record.features is not None
    stored = store.put(
        "acme",
        "features/short",
        {"features": as_data(full.features[:15]), "last_hidden": as_data(full.last_hidden[:15])},
    )
    short = msgspec.structs.replace(record.features, uri=stored.uri, sha256=stored.sha256, rows=15)
    sequence = Assembler(store, LAYERS, HIDDEN, None).assemble(
        [msgspec.structs.replace(record, features=short)]
    )
    assert torch.equal(sequence.token_ids, full.token_ids[:16])
    assert torch.equal(sequence.features[:15], full.features[:15])


def test_values_that_are_not_finite_never_reach_training(models: TinyModels, store: TensorStore) -> None:
    """A feature object with a NaN is corrupt, however right its checksum."""
    (record,) = TinyTenant(models, store, "acme").request()
    assert record.features is not None
    rows = record.features.rows
    tensors = {
        "features": as_data(torch.full((rows, HIDDEN * len(LAYERS)), float("nan"))),
        "last_hidden": as_data(torch.zeros(rows, HIDDEN)),
    }
    stored = store.put("acme", "features/nan", tensors)
    bad = msgspec.structs.replace(record.features, uri=stored.uri, sha256=stored.sha256)
    with pytest.raises(LeftOutError, match="corrupt_features"):
        Assembler(store, LAYERS, HIDDEN, None).assemble([msgspec.structs.replace(record, features=bad)])


def test_features_of_other_layers_are_left_out(models: TinyModels, store: TensorStore) -> None:
    """A drafter can only learn from the layers that it reads."""
    with pytest.raises(LeftOutError, match="mismatched_features"):
        Assembler(store, (0, 1, 5), HIDDEN, None).assemble(TinyTenant(models, store, "acme").request())


def shared(models: TinyModels, store: TensorStore, count: int) -> tuple[list[TraceRecord], list[TraceRecord]]:
    """Requests with an object each, and the same requests with one object for all."""
    tenant = TinyTenant(models, store, "acme")
    own = [tenant.request()[0] for _ in range(count)]
    parts = [load(store.get(one.features.uri, one.features.sha256)) for one in own if one.features]
    joined = {
        name: as_data(torch.cat([part[name] for part in parts])) for name in ("features", "last_hidden")
    }
    stored = store.put("acme", "features/shared", joined)
    rows = sum(len(part["features"]) for part in parts)
    together, row = [], 0
    for one in own:
        assert one.features is not None
        reference = msgspec.structs.replace(
            one.features,
            uri=stored.uri,
            sha256=stored.sha256,
            bytes=stored.bytes,
            first_row=row,
            object_rows=rows,
        )
        together.append(msgspec.structs.replace(one, features=reference))
        row += one.features.rows
    return own, together


def test_requests_find_their_rows_in_a_shared_object(
    models: TinyModels, store: TensorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row range of a shared object is what an object of its own was, and the object is read once."""
    own, together = shared(models, store, 4)
    alone = Assembler(store, LAYERS, HIDDEN, None)
    expected = [alone.assemble([one]) for one in own]
    reads: list[str] = []
    real = type(store).get

    def counted(self: TensorStore, uri: str, sha256: str) -> bytes:
        reads.append(uri)
        return real(self, uri, sha256)

    monkeypatch.setattr(type(store), "get", counted)
    assembler = Assembler(store, LAYERS, HIDDEN, None)
    for one, sequence in zip(together, expected, strict=True):
        found = assembler.assemble([one])
        assert torch.equal(found.features, sequence.features)
        assert torch.equal(found.last_hidden, sequence.last_hidden)
    assert len(reads) == 1
    assembler.release()
    assembler.assemble([together[0]])
    assert len(reads) == 2


@pytest.mark.parametrize(
    "change", [{"first_row": 10_000}, {"first_row": -1}, {"object_rows": 5}, {"rows": 0}]
)
def test_a_range_outside_its_object_is_corrupt(
    models: TinyModels, store: TensorStore, change: dict[str, int]
) -> None:
    """A claim check that does not fit the object never gives somebody else's rows."""
    _, (record, _) = shared(models, store, 2)
    assert record.features is not None
    bad = msgspec.structs.replace(
        record,
        features=msgspec.structs.replace(record.features, **change),
    )
    with pytest.raises(LeftOutError, match="corrupt_features"):
        Assembler(store, LAYERS, HIDDEN, None).assemble([bad])


def test_damage_of_a_shared_object_is_recomputed_and_counted(models: TinyModels, store: TensorStore) -> None:
    """Where the target can be run again, every request of a lost object is, and the reason is kept."""
    own, together = shared(models, store, 3)
    expected = [Assembler(store, LAYERS, HIDDEN, None).assemble([one]) for one in own]
    rows = {len(one.token_ids): one for one in expected}
    store.delete_tenant("acme")

    def recompute(token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        like = rows[len(token_ids)]
        return torch.ones_like(like.features), torch.ones_like(like.last_hidden)

    assembler = Assembler(store, LAYERS, HIDDEN, recompute)
    for one in together:
        assert assembler.assemble([one]).queries
    assert assembler.recomputed == {"missing_features": 3}
