"""Tenants that must stay on turbo: too small, random, noisy or lying."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from adaptive.contracts import SamplingSummary
from adaptive.speculator.adapter import load_adapter
from learners.drafter import load_drafter
from learners.evaluation import score
from learners.features import Assembler
from learners.testing import HIDDEN, LAYERS, VOCABULARY, TinyTenant

if TYPE_CHECKING:
    from adaptive.contracts import TraceRecord
    from tests.integration.learners.conftest import Installation


def noisy(records: list[TraceRecord], share: float, seed: int) -> list[TraceRecord]:
    """Records whose reported output is random in part, with the features of what the target really wrote."""
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


def test_a_tenant_of_twenty_requests_stays_on_turbo(installation: Installation, acme: TinyTenant) -> None:
    """Twenty requests never make a hold-out, however many tokens they are."""
    for _ in range(20):
        installation.send(acme.request(answer=120))
    learner = installation.learner()
    for _ in range(3):
        learner.turn()
    assert learner.status.tenants["acme"].tokens_seen == 20 * 120 > installation.settings.update_tokens
    assert learner._ledger.updates("acme") == []
    assert installation.published() == []


def test_random_text_is_refused_by_the_gate(installation: Installation) -> None:
    """A tenant whose text is random trains, and every challenger is refused with its numbers."""
    installation.tenant("dice")
    dice = TinyTenant(installation.models, installation.store, "dice", jumps=1.0)
    learner = installation.learner()
    for _ in range(3):
        installation.traffic(dice, 28)
        learner.turn()
    reports = [update.report for update in learner._ledger.updates("dice")]
    assert len(reports) >= 1
    assert not any(report is None or report.publish for report in reports)
    assert [update.plan.tenant for update in installation.tracker.recorded] == ["dice"] * len(reports)
    assert installation.published() == []


def test_random_drafts_reported_as_accepted_never_reach_training(
    installation: Installation, acme: TinyTenant
) -> None:
    """Poisoned requests are left out and counted; an honest tenant beside them is published all the same."""
    installation.tenant("mallory")
    mallory = TinyTenant(installation.models, installation.store, "mallory", seed=3)
    for number in range(40):
        installation.send(noisy(mallory.request(), 0.8, number))
    installation.traffic(acme, 28)
    learner = installation.learner()
    for _ in range(3):
        learner.turn()
    status = learner.status.tenants["mallory"]
    assert (status.requests, status.left_out) == (0, {"implausible": 40})
    assert learner._ledger.updates("mallory") == []
    assert [message.adapter.tenant for message in installation.published()] == ["acme"]


def test_what_noisy_labels_teach_holds_on_clean_text(installation: Installation) -> None:
    """With a tenth of the labels random, what passes the gate beats turbo on clean text of the tenant too."""
    models, store = installation.models, installation.store
    installation.tenant("noisy")
    tenant = TinyTenant(models, store, "noisy", seed=4)
    for number in range(48):
        installation.send(noisy(tenant.request(), 0.1, number))
    installation.learner().turn()
    (message,) = installation.published()
    path = store.fetch(message.adapter.uri, message.adapter.sha256, installation.settings.home / "copy")
    drafter = load_drafter(models.target, models.turbo, "float32")
    tensors, _ = load_adapter(path, drafter.head.config)
    assembler = Assembler(store, LAYERS, HIDDEN, None)
    same_text = TinyTenant(models, store, "clean", seed=4)
    clean = [assembler.assemble(same_text.request()) for _ in range(24)]
    taus = [
        score(drafter.head, drawn, clean, lookahead=4, weight=1.0, between=lambda: None).total.tau
        for drawn in (None, tensors)
    ]
    assert taus[1] > taus[0]
