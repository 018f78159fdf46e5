"""A real learner trains where it pays, within quotas, and tells every arm's score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive.contracts import TOPIC_ARM_SCORED, Arm, ArmScored, decode
from adaptive.settings import Settings

if TYPE_CHECKING:
    from learners.learner import Learner
    from learners.testing import TinyTenant
    from tests.integration.learners.conftest import Installation


def scored(installation: Installation) -> list[ArmScored]:
    """Every message of the topic."""
    consumer = installation.transport.consumer([TOPIC_ARM_SCORED], None)
    found: list[ArmScored] = []
    while records := consumer.poll(1.0):
        found += [decode(record.value, ArmScored) for record in records if record.value is not None]
    consumer.close()
    return found


def bytes_on_disk(learner: Learner) -> int:
    """What the tenant's replay takes."""
    return sum(learner._replay.size("acme", one.number) for one in learner._ledger.ready("acme"))


def test_every_request_is_scored_once_by_what_was_not_trained_on_it(
    installation: Installation, acme: TinyTenant
) -> None:
    """Hold-out requests by turbo and challenger, requests that are new to training by turbo alone."""
    installation.traffic(acme, 28)
    learner = installation.learner()
    learner.turn()
    (update,) = learner._ledger.updates("acme")
    messages = {message.trace_id: message for message in scored(installation)}
    assert len(messages) == len(update.plan.holdout) + len(update.plan.fresh) == 28
    names = {request.number: request.request_id for request in learner._ledger.ready("acme")}
    report = update.report
    assert report is not None
    for number in update.plan.holdout:
        arms = [(one.arm, one.version) for one in messages[f"{names[number]}:0"].scores]
        assert arms == [(Arm.TURBO, 0), (Arm.ADAPTER, 1)]
    for number in update.plan.fresh:
        assert [one.arm for one in messages[f"{names[number]}:0"].scores] == [Arm.TURBO]
    held = [messages[f"{names[number]}:0"] for number in update.plan.holdout]
    for index, total in ((0, report.turbo), (1, report.challenger)):
        steps = sum(message.scores[index].verify_steps for message in held)
        accepted = sum(message.scores[index].accepted for message in held)
        assert steps == total.verify_steps
        assert abs(1 + accepted / steps - total.tau) < 1e-9


def test_a_tenant_whose_quota_is_used_up_waits(installation: Installation, acme: TinyTenant) -> None:
    """The first update uses the day's seconds up; new text waits, and the status says what for."""
    installation.settings = Settings(
        **installation.settings.model_dump(exclude={"training_seconds_per_day"}),
        training_seconds_per_day=0.001,
    )
    learner = installation.learner()
    for _ in range(3):
        installation.traffic(acme, 28)
        learner.turn()
    status = learner.status.tenants["acme"]
    assert status.updates == 1
    assert status.training_seconds_today >= 0.001
    assert "quota" in status.waiting_for
    assert status.training == "idle"


def test_a_replay_on_disk_keeps_within_its_bytes(installation: Installation, acme: TinyTenant) -> None:
    """After a trim the files take no more than replay_bytes, and the newest requests are among them."""
    installation.settings = Settings(
        **installation.settings.model_dump(exclude={"replay_bytes", "update_tokens"}),
        replay_bytes=1 << 20,
        update_tokens=1_000_000,
    )
    learner = installation.learner()
    for _ in range(3):
        installation.traffic(acme, 12)
        learner.turn()
    before = bytes_on_disk(learner)
    assert len(learner._ledger.ready("acme")) == 36
    learner._settings = installation.settings.model_copy(update={"replay_bytes": before // 2})  # type: ignore[misc]
    learner._trim("acme")
    assert bytes_on_disk(learner) <= before // 2
    kept = [request.request_id for request in learner._ledger.ready("acme")]
    assert {f"acme-{number}" for number in range(30, 37)} <= set(kept)
