"""The learner publishes what passes the gate, learns for nobody who declined, and survives faults."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from adaptive.speculator.adapter import load_adapter
from adaptive.speculator.config import SpeculatorConfig
from collectors.store import StoreUnavailableError
from learners.learner import ATTEMPTS, StoppedError
from learners.records import UpdateState
from learners.testing import TinyTenant
from learners.training import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from learners.learner import Learner
    from tests.integration.learners.conftest import Installation


def interrupt(learner: Learner, monkeypatch: pytest.MonkeyPatch, at: str, action: object) -> None:
    """Call `action` once, when the learner says that it is about to do `at`."""
    original = learner._at
    done: list[str] = []

    def watched(doing: str) -> None:
        if doing.startswith(at) and not done:
            done.append(doing)
            assert callable(action)
            action()
        original(doing)

    monkeypatch.setattr(learner, "_at", watched)


def test_a_better_adapter_is_published_recorded_and_readable(
    installation: Installation, acme: TinyTenant
) -> None:
    """An update ends as version 1: in the store with its checksum, announced with its numbers, recorded."""
    installation.traffic(acme, 28)
    learner = installation.learner()
    learner.turn()
    (message,) = installation.published()
    assert message.adapter.version == 1
    assert message.gain_lower > 0
    assert message.challenger.tau > message.turbo.tau
    assert message.mlflow_run_id == "run-1"
    assert message.tokens_trained == 16 * 40
    assert sum(message.trace_last_offset.values()) >= 12
    path = installation.store.fetch(
        message.adapter.uri, message.adapter.sha256, installation.settings.home / "copy"
    )
    _, metadata = load_adapter(path, SpeculatorConfig.from_directory(installation.models.turbo))
    assert (metadata.tenant, metadata.version) == ("acme", 1)
    status = learner.status.tenants["acme"]
    assert (status.versions, status.training, status.tokens_since_update) == ([1], "idle", 0)


def test_no_update_begins_before_enough_new_tokens(installation: Installation, acme: TinyTenant) -> None:
    """Traffic below update_tokens trains nothing; the second update waits for as much new traffic again."""
    learner = installation.learner()
    installation.traffic(acme, 14)
    learner.turn()
    assert learner.status.tenants["acme"].updates == 0
    installation.traffic(acme, 14)
    learner.turn()
    learner.turn()
    assert learner.status.tenants["acme"].updates == 1


def test_the_second_update_starts_from_and_must_beat_the_champion(
    installation: Installation, acme: TinyTenant
) -> None:
    """Once version 1 serves, the next challenger warm-starts from it, must beat it, and is version 2."""
    learner = installation.learner()
    installation.traffic(acme, 28)
    learner.turn()
    installation.promote(installation.published()[0])
    installation.traffic(acme, 28)
    learner.turn()
    update = learner._ledger.updates("acme")[-1]
    assert update.plan.warm_start is not None
    assert update.plan.warm_start.version == 1
    assert update.plan.version == 2
    assert update.report is not None
    assert update.report.champion is not None
    assert update.report.champion_version == 1
    assert not set(update.plan.holdout) & set(learner._ledger.updates("acme")[0].plan.training)


def test_a_useless_challenger_is_refused_with_its_numbers(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A challenger that learned nothing is not announced; the refusal is recorded and shown."""
    monkeypatch.setattr(Trainer, "_step", lambda *_: 1.0)
    monkeypatch.setattr("learners.training._save", lambda *_: None)
    installation.traffic(acme, 28)
    learner = installation.learner()
    learner.turn()
    assert installation.published() == []
    (recorded,) = installation.tracker.recorded
    assert recorded.report is not None
    assert not recorded.report.publish
    assert "95 % interval" in (learner.status.tenants["acme"].last_refusal or "")


@pytest.mark.parametrize(("learn", "freeze", "shown"), [(False, False, "off"), (True, True, "frozen")])
def test_switching_learning_off_or_freezing_stops_training(
    installation: Installation,
    acme: TinyTenant,
    monkeypatch: pytest.MonkeyPatch,
    *,
    learn: bool,
    freeze: bool,
    shown: str,
) -> None:
    """The update under way is abandoned at its next step and none begins after it."""
    installation.traffic(acme, 28)
    learner = installation.learner()
    interrupt(
        learner, monkeypatch, "training", lambda: installation.tenant("acme", learn=learn, freeze=freeze)
    )
    learner.turn()
    learner.turn()
    assert [update.state for update in learner._ledger.updates("acme")] == [UpdateState.ABANDONED]
    assert installation.published() == []
    assert learner.status.tenants["acme"].training == shown


def test_a_frozen_tenant_keeps_its_traces_and_trains_nothing(
    installation: Installation, acme: TinyTenant
) -> None:
    """Frozen from the start: traffic is stored for replay and no update begins."""
    installation.tenant("acme", freeze=True)
    installation.traffic(acme, 28)
    learner = installation.learner()
    learner.turn()
    assert learner.status.tenants["acme"].requests == 28
    assert learner._ledger.updates("acme") == []


def test_the_pause_file_holds_training_between_steps(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file exists no step runs, traces are still taken in, and the status says paused."""
    installation.traffic(acme, 28)
    learner = installation.learner()
    interrupt(learner, monkeypatch, "training", installation.paths.pause.touch)
    seen: list[tuple[bool, str, int]] = []
    take_in = learner._take_in

    def watched(timeout: float) -> None:
        take_in(timeout)
        if installation.paths.pause.exists():
            status = learner.status
            seen.append((status.paused, status.tenants["acme"].training, status.tenants["acme"].requests))
            if len(seen) == 2:
                installation.traffic(acme, 1)
            if status.tenants["acme"].requests == 29:
                installation.paths.pause.unlink()

    monkeypatch.setattr(learner, "_take_in", watched)
    learner.turn()
    assert seen[-1][0]
    assert {doing.partition("/")[0] for _, doing, _ in seen} == {"training step 1"}
    assert not learner.status.paused
    assert learner.status.tenants["acme"].versions == [1]


def test_tenants_take_turns(installation: Installation, acme: TinyTenant) -> None:
    """A tenant with ten times the traffic does not keep another from its update."""
    installation.tenant("tiny")
    tiny = TinyTenant(installation.models, installation.store, "tiny", seed=5)
    learner = installation.learner()
    installation.traffic(acme, 28)
    learner.turn()
    installation.traffic(acme, 60)
    installation.traffic(tiny, 28)
    learner.turn()
    assert len(learner._ledger.updates("tiny")) == 1
    learner.turn()
    assert len(learner._ledger.updates("acme")) == 2


def test_publishing_goes_on_while_mlflow_is_away(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is announced without a run id; the run is recorded when MLflow is back."""
    monkeypatch.setattr("learners.learner.HOUSEKEEPING_SECONDS", 0.0)
    installation.tracker.away = True
    installation.traffic(acme, 28)
    learner = installation.learner()
    learner.turn()
    (message,) = installation.published()
    assert message.mlflow_run_id == ""
    installation.tracker.away = False
    learner.turn()
    assert [update.update_id for update in installation.tracker.recorded] == [1]
    assert learner._ledger.updates("acme")[0].run_id == "run-1"
    assert list(installation.paths.updates.rglob("*.safetensors")) == []


@pytest.mark.parametrize("limit", ["own age", "own bytes", "the service's age"])
def test_the_replay_keeps_no_more_than_the_retention_allows(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A tenant's own limit, or the service's, takes old requests from disk and ledger and leaves new ones."""
    monkeypatch.setattr("learners.learner.HOUSEKEEPING_SECONDS", 0.0)
    now = time.time()
    old = now - 10 * 86_400 if limit == "the service's age" else now - 60
    for _ in range(3):
        installation.send(acme.request(created_at=old))
    installation.send(acme.request(created_at=now))
    learner = installation.learner()
    if limit == "own age":
        installation.tenant("acme", retention_seconds=30.0)
    elif limit == "own bytes":
        installation.tenant("acme", retention_bytes=50_000)
    learner.turn()
    (file,) = installation.paths.replay.rglob("*.safetensors")
    assert 25_000 < file.stat().st_size < 50_000
    assert [request.created_at for request in learner._ledger.ready("acme")] == [now]


def test_a_store_outage_while_publishing_delays_the_version_only(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is announced while the store is away; then the same decision is published untrained."""

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    installation.traffic(acme, 28)
    learner = installation.learner()
    with monkeypatch.context() as patch:
        patch.setattr("collectors.store.TensorStore.put_file", away)
        with pytest.raises(StoreUnavailableError):
            learner.turn()
    assert installation.published() == []
    monkeypatch.setattr(Trainer, "train", lambda *_, **__: pytest.fail("trained again"))
    learner.turn()
    assert installation.published()[0].adapter.version == 1


def test_a_learner_stopped_in_mid_training_goes_on_as_if_nothing_had_been(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A second learner finishes the first one's update, with the bytes one learner would publish."""
    installation.traffic(acme, 28)
    learner = installation.learner()
    interrupt(learner, monkeypatch, "training step 8/", installation.stop.set)
    with pytest.raises(StoppedError):
        learner.turn()
    assert installation.published() == []
    installation.stop.clear()
    learner._intake.close()  # its lease would outlive this test
    second = installation.learner()
    second.turn()
    (message,) = installation.published()
    assert len(second._ledger.updates("acme")) == 1

    alone = type(installation)(tmp_path / "alone", installation.models)
    alone.tenant("acme")
    alone.traffic(TinyTenant(alone.models, alone.store, "acme"), 28)
    alone.learner().turn()
    assert alone.published()[0].adapter.sha256 == message.adapter.sha256
    alone.transport.close()


def test_an_update_that_always_fails_is_given_up(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three failures the update is abandoned, the error is shown, and other tenants get their turn."""

    def broken(*_: object, **__: object) -> None:
        raise ArithmeticError("loss is nan")

    monkeypatch.setattr(Trainer, "train", broken)
    installation.traffic(acme, 28)
    learner = installation.learner()
    for _ in range(ATTEMPTS):
        with pytest.raises(ArithmeticError):
            learner.turn()
    learner.turn()
    assert [update.state for update in learner._ledger.updates("acme")] == [UpdateState.ABANDONED]


def test_a_damaged_replay_file_costs_one_update_and_not_the_learner(
    installation: Installation, acme: TinyTenant
) -> None:
    """An update whose data cannot be read is abandoned; what is damaged is left out from then on."""
    installation.traffic(acme, 14)
    learner = installation.learner()
    learner.turn()
    victim = min(installation.paths.replay.rglob("*.safetensors"))
    victim.write_bytes(b"damaged")
    installation.traffic(acme, 14)
    learner.turn()
    assert [update.state for update in learner._ledger.updates("acme")] == [UpdateState.ABANDONED]
    installation.traffic(acme, 28)
    learner.turn()
    assert learner.status.tenants["acme"].versions == [1]


def test_an_unusable_champion_counts_as_turbo(installation: Installation, acme: TinyTenant) -> None:
    """A champion whose file is gone neither stops learning nor is it what a challenger is judged by."""
    learner = installation.learner()
    installation.traffic(acme, 28)
    learner.turn()
    message = installation.published()[0]
    installation.store.delete_tenant("acme")
    installation.promote(message)
    installation.traffic(acme, 28)
    learner.turn()
    update = learner._ledger.updates("acme")[-1]
    assert update.plan.warm_start is None
    assert update.plan.version == 2
    assert update.report is not None
    assert update.report.champion is None


def test_the_champion_alias_follows_the_policy(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a policy lets a published version serve, people looking at MLflow can see it."""
    monkeypatch.setattr("learners.learner.HOUSEKEEPING_SECONDS", 0.0)
    learner = installation.learner()
    installation.traffic(acme, 28)
    learner.turn()
    installation.promote(installation.published()[0])
    learner.turn()
    assert installation.tracker.champions == {"acme": 1}


def test_replay_of_another_target_is_dropped_at_start(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the target is replaced, requests stored under the old one are removed."""
    installation.traffic(acme, 5)
    installation.learner().turn()
    assert len(list(installation.paths.replay.rglob("*.safetensors"))) == 5
    monkeypatch.setattr("learners.drafter.Drafter.source", "another")
    assert installation.learner()._ledger.ready("acme") == []
    assert list(installation.paths.replay.rglob("*.safetensors")) == []
