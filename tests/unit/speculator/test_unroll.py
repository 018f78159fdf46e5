"""The batched unrolling is the server's step-by-step drafting."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from adaptive.speculator.adapter import Adapter
from adaptive.speculator.loss import _HeadDivergence, unrolled_loss
from adaptive.speculator.objective import HYBRID_DECAY, Objective
from adaptive.speculator.sequences import TracedSequence, batches, collate, pack_step
from adaptive.speculator.unroll import unroll

from .server import draft_from

if TYPE_CHECKING:
    from adaptive.speculator.head import Eagle3Head

DEPTH = 4


def test_every_pass_equals_step_by_step_drafting(
    head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence]
) -> None:
    """Pass j at slot t gives the hidden state of the j-th draft of a verify step begun j-1 slots earlier."""
    batch = collate(sequences, [[0, 1], [2, 3]])
    compared = 0
    for j, (hidden, reachable) in enumerate(unroll(head, adapter, batch, DEPTH)):
        for b, q in reachable.nonzero().tolist():
            item = sequences[int(batch.sequence[b, q])]
            slot = int(batch.positions[b, batch.query_slot[b, q]])
            _, hiddens = draft_from(head, adapter, item, slot - j, DEPTH, forced=True)
            torch.testing.assert_close(hidden[b, q], hiddens[j], rtol=0, atol=1e-6)
            compared += 1
    assert compared > 40


def test_packing_changes_no_value(head: Eagle3Head, sequences: list[TracedSequence]) -> None:
    """A sequence's passes are the same alone and beside others in a row."""
    together = collate(sequences, [[0, 1, 2, 3]])
    for j, (hidden, reachable) in enumerate(unroll(head, None, together, DEPTH)):
        for index in range(len(sequences)):
            alone = list(unroll(head, None, collate(sequences, [[index]]), DEPTH))[j]
            mine = together.sequence[0] == index
            assert torch.equal(reachable[0, mine], alone[1][0])
            torch.testing.assert_close(hidden[0, mine][alone[1][0]], alone[0][0][alone[1][0]])


def test_unreachable_after_an_undraftable_token(head: Eagle3Head, sequences: list[TracedSequence]) -> None:
    """No pass counts behind a token that cannot have been drafted, and none crosses into another request."""
    batch = collate(sequences, [[0, 1], [2, 3]])
    for j, (_, reachable) in enumerate(unroll(head, None, batch, DEPTH)):
        for b, q in (batch.span >= 0).nonzero().tolist():
            item = sequences[int(batch.sequence[b, q])]
            slot = int(batch.positions[b, batch.query_slot[b, q]])
            inside = slot - j >= item.first_query
            draftable = bool(head.t2d[item.token_ids[slot + 2 - j : slot + 2]].all())
            assert bool(reachable[b, q]) == (inside and draftable)


def test_loss_equals_explicit_divergence(
    head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence], generator: torch.Generator
) -> None:
    """The loss is the decayed mean over passes of KL(target || drafter), computed the long way."""
    rows = torch.randn(17, 8, generator=generator, dtype=torch.float64)
    batch = collate(sequences, [[0, 1], [2, 3]])
    result = unrolled_loss(head, adapter, batch, DEPTH, target_rows=rows, decay=0.5)
    explicit = []
    for hidden, reachable in unroll(head, adapter, batch, DEPTH):
        keep = reachable & head.t2d[batch.labels]
        log_p = (batch.teacher_hidden[keep] @ rows.T).log_softmax(-1)
        log_q = head.lm_head(hidden[keep]).log_softmax(-1)
        explicit.append((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    torch.testing.assert_close(result.divergence.double(), torch.stack(explicit), rtol=1e-5, atol=1e-5)
    expected = sum(0.5**j * kl for j, kl in enumerate(explicit)) / sum(0.5**j for j in range(DEPTH))
    torch.testing.assert_close(result.loss.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("objective", Objective)
def test_head_divergence_gradients(generator: torch.Generator, objective: Objective) -> None:
    """The memory-saving loss has autograd's value and gradients for hidden states and LM head."""
    hidden = torch.randn(9, 5, generator=generator, requires_grad=True)
    rows = torch.randn(7, 5, generator=generator, requires_grad=True)
    teacher = torch.randn(9, 7, generator=generator).softmax(-1)
    entropy = -(teacher * teacher.log()).sum(-1)
    row_weight = torch.rand(9, generator=generator)
    log_q = (hidden @ rows.T).log_softmax(-1)
    kl = (teacher * (teacher.log() - log_q)).sum(-1)
    acceptance = torch.minimum(teacher, log_q.exp()).sum(-1)
    share = torch.exp(-HYBRID_DECAY * acceptance.detach())
    plain = {
        Objective.KL: kl,
        Objective.HYBRID: share * kl + (1 - share) * (1 - acceptance),
        Objective.ACCEPTANCE: -acceptance.log(),
    }[objective] @ row_weight
    expected = torch.autograd.grad(plain * 3, [hidden, rows])
    fused = _HeadDivergence.apply(hidden, rows, teacher, entropy, row_weight, objective)  # type: ignore[no-untyped-call]  # torch
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(torch.autograd.grad(fused * 3, [hidden, rows]), expected)


def test_rejected_positions_count_more(
    head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence], generator: torch.Generator
) -> None:
    """With weight 3 a position whose draft was rejected counts as four others."""
    rows = torch.randn(17, 8, generator=generator, dtype=torch.float64)
    item = sequences[2]
    marked = dataclasses.replace(item, rejected=torch.rand(len(item.token_ids), generator=generator) < 0.4)
    batch = collate([marked], [[0]])
    result = unrolled_loss(head, adapter, batch, 1, target_rows=rows, rejected_weight=3.0)
    ((hidden, reachable),) = unroll(head, adapter, batch, 1)
    keep = reachable & head.t2d[batch.labels]
    log_p = (batch.teacher_hidden[keep] @ rows.T).log_softmax(-1)
    kl = (log_p.exp() * (log_p - head.lm_head(hidden[keep]).log_softmax(-1))).sum(-1)
    slots = batch.positions[0, batch.query_slot[keep]]
    assert marked.rejected is not None
    weight = 1.0 + 3.0 * marked.rejected[slots + 2]
    assert 1.0 < float(weight.mean()) < 4.0
    expected = (kl * weight).sum() / weight.sum()
    torch.testing.assert_close(result.loss.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("block_slots", [10, 512])
def test_packing_changes_no_loss(
    monkeypatch: pytest.MonkeyPatch,
    block_slots: int,
    head: Eagle3Head,
    adapter: Adapter,
    sequences: list[TracedSequence],
    generator: torch.Generator,
    objective: Objective,
) -> None:
    """The loss of a packed step and the adapter's gradient are those of one row per request."""
    monkeypatch.setattr("adaptive.speculator.sequences.BLOCK_SLOTS", block_slots)
    rows = torch.randn(17, 8, generator=generator, dtype=torch.float64)
    found = []
    for batch in (pack_step(sequences), collate(sequences, [[0], [1], [2], [3]])):
        adapter.zero_grad()
        loss = unrolled_loss(head, adapter, batch, DEPTH, target_rows=rows, objective=objective).loss
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        found.append((loss.detach(), [p.grad for p in adapter.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_training_an_adapter_lowers_the_loss(
    head: Eagle3Head, sequences: list[TracedSequence], generator: torch.Generator
) -> None:
    """Gradient steps on the adapter alone bring the drafter nearer to the target; turbo stays as it is."""
    from adaptive.speculator.adapter import AdapterConfig  # noqa: PLC0415

    adapter = Adapter(AdapterConfig(rank=4), head.config, generator).double()
    rows = torch.randn(17, 8, generator=generator, dtype=torch.float64)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=1e-2)
    (batch,) = batches(sequences, row_slots=32)
    losses = []
    for _ in range(60):
        result = unrolled_loss(head, adapter, batch, 3, target_rows=rows)
        optimizer.zero_grad()
        result.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        losses.append(float(result.loss.detach()))
    assert losses[-1] < 0.85 * losses[0]
    assert all(torch.equal(before[name], value) for name, value in head.state_dict().items())


def test_attention_is_finite_where_nothing_is_visible() -> None:
    """Padding never makes NaN, which would poison the gradient."""
    from adaptive.speculator.unroll import attend  # noqa: PLC0415

    query, keys = torch.randn(1, 2, 4, 4), torch.randn(1, 3, 2, 4)
    out = attend(query, keys, keys, torch.zeros(1, 2, 3, dtype=torch.bool), [])
    assert bool(torch.isfinite(out).all())
    assert functional.mse_loss(out, torch.zeros_like(out)) == 0
