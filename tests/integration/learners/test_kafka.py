"""Controller, learner, MLflow and an endpoint's agent on a real broker: the loop closes, an erasure ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from adaptive.cli.erased import prove_erased
from adaptive.endpoint.errors import EndpointError
from controller import erasing
from learners.testing import TinyTenant
from tests.integration.learners.conftest import Installation
from tests.integration.learners.test_erasure import Service

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.endpoint.tenants import TenantDirectory
    from learners.testing import TinyModels

# MLflow 3.17 builds its tables with an option that SQLAlchemy 2.1 deprecates; we cannot change that.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


def known(directory: TenantDirectory, key: str) -> bool:
    """Whether the endpoint takes a key."""
    try:
        return directory.authenticate(f"Bearer {key}").tenant == "acme"
    except EndpointError:
        return False


def test_every_role_works_on_kafka(
    kafka_url: str, models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key, traces, adapter, policy, telemetry and erasure go their ways over the broker.

    A tenant's key works within seconds, its traces become a champion in force at the endpoint, whose
    telemetry reaches the controller; its erasure ends.
    """
    monkeypatch.setattr("learners.learner.POLL_SECONDS", 0.01)
    monkeypatch.setattr(erasing, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(erasing, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr("learners.erasure.RETRY_SECONDS", 0.1)
    installation = Installation(tmp_path, models, kafka_url)
    acme = TinyTenant(models, installation.store, "acme")
    with Service(installation) as service:
        directory = service.start_endpoint()
        service.call("POST", "/v1/tenants", {"id": "acme", "learn": True})
        key = service.call("POST", "/v1/tenants/acme/keys")["key"]
        began = time.monotonic()
        while not known(directory, key):
            assert time.monotonic() - began < 5, "the key does not work"
            time.sleep(0.02)

        installation.traffic(acme, 28)
        service.until(lambda: service.requests("acme") == 28)
        service.until(lambda: service.call("GET", "/v1/tenants/acme")["champion"] == 1)
        service.until(lambda: directory.version_in_force("acme") == 1)
        service.until(lambda: "engine-1" in str(service.call("GET", "/v1/engines")))
        assert not prove_erased(service.settings, "acme").passed

        service.call("DELETE", "/v1/tenants/acme")
        service.until(lambda: service.job()["state"] == "done")
        assert service.job()["kafka_gone_by"], "the operator is told when the broker's bytes go"
        assert directory.version_in_force("acme") == 0
        service.until(lambda: prove_erased(service.settings, "acme").passed)
    installation.transport.close()
