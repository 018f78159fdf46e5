"""Only what a tenant consented to, and only what is whole, reaches the replay; the rest is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from collectors.store import StoreUnavailableError
from learners.ledger import Ledger
from learners.testing import TinyTenant

if TYPE_CHECKING:
    import pytest

    from collectors.store import TensorStore
    from tests.integration.learners.conftest import Installation


def left_out(installation: Installation, tenant: str = "acme") -> dict[str, int]:
    """What the ledger left out of a tenant's traces."""
    return Ledger(installation.paths.ledger).tenants()[tenant].left_out


def test_traces_without_consent_are_consumed_and_not_kept(installation: Installation) -> None:
    """Traces of a tenant with learning off, and of an unknown one, leave nothing behind but a count."""
    installation.tenant("quiet", learn=False)
    for name in ("quiet", "unknown"):
        installation.send(TinyTenant(installation.models, installation.store, name).request(segments=2))
    installation.learner().turn()
    ledger = Ledger(installation.paths.ledger)
    for name in ("quiet", "unknown"):
        assert ledger.tenants()[name].left_out == {"no_consent": 2}
        assert ledger.ready(name) == []
    assert ledger.complete_requests() == []
    assert not installation.paths.replay.exists()


def test_a_corrupt_feature_object_is_counted_and_the_rest_goes_on(
    installation: Installation, acme: TinyTenant
) -> None:
    """A request whose features fail their checksum is left out; the one after it is stored."""
    installation.send(acme.damage(record) for record in acme.request())
    installation.send(acme.request())
    installation.learner().turn()
    assert left_out(installation) == {"corrupt_features": 1}
    assert len(Ledger(installation.paths.ledger).ready("acme")) == 1


def test_a_missing_feature_object_and_traces_without_features_are_counted(
    installation: Installation, acme: TinyTenant
) -> None:
    """A deleted object, and a request that was not sampled for features, are both left out."""
    (gone,) = acme.request()
    (bare,) = acme.request()
    assert gone.features is not None
    moved = msgspec.structs.replace(gone.features, uri=f"{installation.store.url}/acme/none.safetensors")
    installation.send([msgspec.structs.replace(gone, features=moved)])
    installation.send([msgspec.structs.replace(bare, features=None)])
    installation.learner().turn()
    assert left_out(installation) == {"missing_features": 2}


def test_traces_of_another_target_are_left_out(installation: Installation, acme: TinyTenant) -> None:
    """Text of another target says nothing about this one."""
    installation.send(msgspec.structs.replace(record, target_sha256="other") for record in acme.request())
    installation.learner().turn()
    assert left_out(installation) == {"other_target": 1}


def test_requests_wait_while_the_store_is_away(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store outage leaves nothing out: requests are assembled when it is back."""

    def away(_self: TensorStore, uri: str, _sha256: str) -> bytes:
        raise StoreUnavailableError(uri)

    learner = installation.learner()
    installation.send(acme.request())
    with monkeypatch.context() as patch:
        patch.setattr("collectors.store.TensorStore.get", away)
        learner.turn()
    ledger = Ledger(installation.paths.ledger)
    assert ledger.ready("acme") == []
    learner.turn()
    assert len(ledger.ready("acme")) == 1


def test_a_learner_killed_before_its_commit_takes_nothing_twice(
    installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces entered but not committed are delivered again and ignored."""
    installation.traffic(acme, 5)
    with monkeypatch.context() as patch:
        patch.setattr("collectors.consumer.MessageConsumer.commit", lambda _self: None)
        first = installation.learner()
        first.turn()
        first._intake.close()  # a kill would let its lease expire
    second = installation.learner()
    second.turn()
    assert second._intake.report().duplicates == 7
    assert second.status.tenants["acme"].requests == 5
    assert second.status.tenants["acme"].tokens_seen == 200
