"""What MLflow does not know about one tenant keeps no other tenant's champion from being shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from adaptive.contracts import AdapterReference, PolicyDecided
from adaptive.settings import Settings
from learners.learner import Learner
from learners.ledger import Ledger
from learners.mlflow import MlflowTracker, TrackingError, UnknownVersionError
from learners.records import UpdateState
from learners.replay import Replay
from learners.scheduling import Scheduler
from tests.unit.learners.test_ledger import plan

if TYPE_CHECKING:
    from pathlib import Path

TENANTS = ("first", "second", "third")


class RegistryError(Exception):
    """Has an error code, as MLflow's exceptions do."""

    def __init__(self, error_code: str) -> None:
        super().__init__(error_code)
        self.error_code = error_code


@dataclass
class ScriptedMarks:
    """Fails for some tenants."""

    failures: dict[str, TrackingError]
    asked: list[str] = field(default_factory=list)

    def mark_champion(self, tenant: str, version: int | None) -> None:
        """Note the call."""
        assert version == 1
        self.asked.append(tenant)
        if tenant in self.failures:
            raise self.failures[tenant]


@pytest.mark.parametrize(
    ("error", "asked", "again"),
    [
        (UnknownVersionError("no such model"), ["first", "second", "third"], ["first"]),
        (TrackingError("away"), ["first"], ["first", "second", "third"]),
    ],
)
def test_a_tenant_unknown_to_mlflow_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TrackingError, asked: list[str], again: list[str]
) -> None:
    """Only a server that is away ends the round; whoever was not shown is tried again in the next one."""
    monkeypatch.setattr("learners.learner.HOUSEKEEPING_SECONDS", 0.0)
    ledger, marks = Ledger(tmp_path / "ledger.db"), ScriptedMarks({"first": error})
    policies = Mock(poll=Mock(side_effect=[{tenant: policy(tenant) for tenant in TENANTS}, {}]))
    for tenant in TENANTS:
        ledger.advance_update(ledger.begin_update(plan(tenant)), UpdateState.PUBLISHED)
    learner = Learner(
        Settings(home=tmp_path),
        ledger=ledger,
        replay=Replay(tmp_path / "replay"),
        intake=Mock(),
        tenants=Mock(latest={}),
        policies=policies,
        updater=Mock(),
        marks=marks,
        scheduler=Scheduler(Settings(home=tmp_path), ledger, lambda _: 0.03, lambda: 0.0),
        feature_source="t",
        pause_file=tmp_path / "pause",
        stop=Event(),
    )
    learner.turn()
    assert marks.asked == asked
    marks.failures.clear()
    marks.asked.clear()
    learner.turn()
    assert marks.asked == again
    ledger.close()


def policy(tenant: str) -> PolicyDecided:
    """Version 1 serves."""
    return PolicyDecided(
        tenant, 1, AdapterReference(tenant, 1, "", "", "t", "u", 8), 1.0, 4, 0.0, 0.0, "", 0.0
    )


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """An MLflow client without any model."""
    client = Mock()
    client.search_model_versions.return_value = []
    client.delete_registered_model_alias.side_effect = RegistryError("RESOURCE_DOES_NOT_EXIST")
    monkeypatch.setattr(MlflowTracker, "_connect", lambda _: client)
    return client


def test_a_missing_model_has_no_champion_alias_to_remove(tmp_path: Path, registry: Mock) -> None:
    """Turbo serving a tenant without a model needs nothing done; a server's own failure is reported."""
    tracker = MlflowTracker("", tmp_path, "tiny", "ledger")
    tracker.mark_champion("acme", None)
    registry.delete_registered_model_alias.side_effect = RegistryError("INTERNAL_ERROR")
    with pytest.raises(TrackingError, match="INTERNAL_ERROR") as caught:
        tracker.mark_champion("acme", None)
    assert not isinstance(caught.value, UnknownVersionError)


def test_a_missing_version_is_told_from_a_server_that_is_away(tmp_path: Path, registry: Mock) -> None:
    """No such version, also where it goes between two calls, is an UnknownVersionError; the rest is not."""
    tracker = MlflowTracker("", tmp_path, "tiny", "ledger")
    with pytest.raises(UnknownVersionError, match=r"no version 1 of drafter\.tiny\.acme"):
        tracker.mark_champion("acme", 1)
    registry.search_model_versions.return_value = [Mock(version="3", tags={"adaptive.version": "1"})]
    registry.set_registered_model_alias.side_effect = RegistryError("RESOURCE_DOES_NOT_EXIST")
    with pytest.raises(UnknownVersionError):
        tracker.mark_champion("acme", 1)
    registry.search_model_versions.side_effect = ConnectionError("refused")
    with pytest.raises(TrackingError, match="refused") as caught:
        tracker.mark_champion("acme", 1)
    assert not isinstance(caught.value, UnknownVersionError)
