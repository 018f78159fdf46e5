"""An erasure through the whole service on one home: controller, learner, MLflow, endpoint; byte by byte."""

from __future__ import annotations

import hashlib
import time
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import pytest
from fastapi.testclient import TestClient
from mlflow import MlflowClient
from safetensors.torch import load_file

from adaptive.cli.erased import prove_erased
from adaptive.endpoint.agent import Agent
from adaptive.endpoint.tenants import TenantDirectory
from collectors.erasure import ErasedTenants
from collectors.open import open_transport
from controller import erasing
from controller.app import create_app
from learners.assembly import build_learner
from learners.ledger import Ledger
from learners.mlflow import TrackingError
from learners.mlflow_erasure import MlflowEraser
from learners.testing import TinyTenant
from tests.integration.learners.test_learner import interrupt
from tests.unit.endpoint.service import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from learners.learner import Learner
    from tests.integration.learners.conftest import Installation

# MLflow 3.17 builds its tables with an option that SQLAlchemy 2.1 deprecates; we cannot change that.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")

ADMIN_KEY: Final = "adm_erasure"
WAIT_SECONDS: Final = 60.0
_BYTES: Final = 64


class Service:
    """Every role on one home; the learner is turned by hand."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.settings = installation.settings
        self.home = installation.settings.home
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "admin_key").write_text(ADMIN_KEY)
        self.app = create_app(self.settings)
        self.client = TestClient(self.app, headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        self.engine = Engine()
        self.agent: Agent | None = None
        self.learner, self._close = self._build()

    def _build(self) -> tuple[Learner, Callable[[], None]]:
        return build_learner(self.settings, Event())

    def __enter__(self) -> Self:
        self.client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.agent is not None:
            self.agent.stop()
        self._close()
        self.client.__exit__()

    def restart_learner(self) -> None:
        """Go on as a new process would after this one was killed."""
        self._close()
        self.learner, self._close = self._build()

    def start_endpoint(self) -> TenantDirectory:
        """Start the agent of an endpoint with a fake engine."""
        directory = TenantDirectory()
        turbo, target = self.installation.models.turbo, self.installation.models.target
        self.agent = Agent(
            self.settings,
            self.engine,
            directory,
            lambda: open_transport(self.settings.resolved_log_url),
            engine_id="engine-1",
            target_sha256=_sha256(target / "model.safetensors"),
            turbo_sha256=_sha256(turbo / "model.safetensors"),
        )
        self.agent.start()
        return directory

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the admin API."""
        response = self.client.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json()

    def until(self, condition: Callable[[], object]) -> None:
        """Turn the learner until a condition holds."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.call("GET", "/v1/erasures")
            self.learner.turn()

    def requests(self, tenant: str) -> int:
        """Requests in a tenant's replay."""
        status = self.learner.status.tenants.get(tenant)
        return status.requests if status is not None else 0

    def job(self) -> Any:
        """The newest erasure."""
        return self.call("GET", "/v1/erasures")["data"][-1]

    def holding(self, secret: bytes) -> set[str]:
        """Top-level entries of the home under which a file holds these bytes."""
        return {
            path.relative_to(self.home).parts[0]
            for path in self.home.rglob("*")
            if path.is_file() and secret in path.read_bytes()
        }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.fixture
def service(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service of two tenants that learn."""
    monkeypatch.setattr(erasing, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(erasing, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr("learners.erasure.RETRY_SECONDS", 0.1)
    with Service(installation) as made:
        for tenant in ("acme", "other"):
            made.call("POST", "/v1/tenants", {"id": tenant, "learn": True})
            made.call("POST", f"/v1/tenants/{tenant}/keys")
        yield made


@pytest.fixture
def other(installation: Installation) -> TinyTenant:
    """A neighbour."""
    return TinyTenant(installation.models, installation.store, "other", seed=5)


def test_nothing_of_an_erased_tenant_is_left_and_its_neighbour_keeps_everything(
    service: Service, installation: Installation, acme: TinyTenant, other: TinyTenant
) -> None:
    """Its tokens, features and adapter were in five places; afterwards no file of the home holds them."""
    installation.traffic(acme, 28)
    installation.traffic(other, 3)
    directory = service.start_endpoint()
    service.until(lambda: service.call("GET", "/v1/tenants/acme")["champion"] == 1)
    service.until(lambda: directory.version_in_force("acme") == 1)
    service.until(lambda: service.requests("other") == 3)

    replay = next(service.installation.paths.replay_of("acme").glob("*.safetensors"))
    sequence = load_file(replay)
    adapter = next((service.home / "endpoint" / "adapters").glob("*.safetensors"))
    tokens = sequence["token_ids"].numpy().tobytes()[:_BYTES]
    features = sequence["features"].view(-1).contiguous().numpy().tobytes()[:_BYTES]
    weights = adapter.read_bytes()[-_BYTES:]
    kept = load_file(next(service.installation.paths.replay_of("other").glob("*.safetensors")))
    others = kept["features"].view(-1).contiguous().numpy().tobytes()[:_BYTES]
    assert service.holding(tokens) == {"learner"}
    assert service.holding(features) == {"learner", "store"}
    assert service.holding(weights) == {"endpoint", "mlartifacts", "store"}
    assert not prove_erased(service.settings, "acme").passed

    service.call("DELETE", "/v1/tenants/acme")
    service.until(lambda: service.job()["state"] == "done")
    for secret in (tokens, features, weights):
        assert service.holding(secret) == set()
    proof = prove_erased(service.settings, "acme")
    assert [one for one in proof.findings if not one.passed] == []
    assert proof.passed
    answers = {answer["process"]: answer["removed"] for answer in service.job()["answers"]}
    assert answers["learner"]["mlflow runs"] == 1
    assert answers["learner"]["mlflow models"] == 1
    assert answers["learner"]["learner replay"] == 28
    assert answers["engine engine-1"]["engine adapter files"] == 1
    assert service.job()["retired"] == ["acme@1"]
    assert directory.version_in_force("acme") == 0
    assert service.holding(others) == {"learner", "store"}
    assert service.requests("other") == 3
    assert "acme" not in service.learner.status.tenants

    service.call("POST", "/v1/tenants", {"id": "acme", "learn": True})
    records = [acme.request() for _ in range(28)]
    installation.send(_of_generation(record, 1) for request in records for record in request)
    service.until(lambda: service.call("GET", "/v1/tenants/acme")["champion"])
    assert service.call("GET", "/v1/tenants/acme")["champion"] == 2, "no version number is given twice"


def _of_generation(record: Any, generation: int) -> Any:
    return msgspec.structs.replace(record, generation=generation)


def test_a_learner_killed_in_the_middle_finishes_after_its_restart(
    service: Service, installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay gone, ledger not: the next process does all of it again, and only then says so."""
    installation.traffic(acme, 5)
    service.until(lambda: service.requests("acme") == 5)
    service.call("DELETE", "/v1/tenants/acme")

    def killed(*_: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            service.until(lambda: False)
    assert service.job()["state"] == "running"
    assert not list(service.installation.paths.replay_of("acme").glob("*"))
    service.restart_learner()
    service.until(lambda: service.job()["state"] == "done")
    assert prove_erased(service.settings, "acme").passed


def test_an_mlflow_that_is_away_delays_the_erasure_and_is_named(
    service: Service, installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is gone already; the job says what it waits for, across a restart too."""
    installation.traffic(acme, 2)
    service.until(lambda: service.requests("acme") == 2)

    def away(*_: object) -> Any:
        raise TrackingError("MLflow at http://nowhere is away")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowEraser, "erase", away)
        service.call("DELETE", "/v1/tenants/acme")
        service.until(lambda: "MLflow at http://nowhere is away" in (service.job()["waiting"] or ""))
        assert not list(service.installation.paths.replay_of("acme").glob("*"))
        service.restart_learner()
    service.until(lambda: service.job()["state"] == "done")


def test_an_update_under_way_is_abandoned_and_publishes_nothing(
    service: Service, installation: Installation, acme: TinyTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant is erased between two training steps."""
    installation.traffic(acme, 28)

    def erase() -> None:
        service.call("DELETE", "/v1/tenants/acme")
        with ErasedTenants(installation.transport) as view:
            deadline = time.monotonic() + WAIT_SECONDS
            while not view.poll():
                assert time.monotonic() < deadline

    interrupt(service.learner, monkeypatch, "training step 2", erase)
    service.until(lambda: service.call("GET", "/v1/erasures")["data"] and service.job()["state"] == "done")
    assert installation.published() == []
    assert not list(installation.paths.updates.rglob("*.safetensors"))
    assert prove_erased(service.settings, "acme").passed


def test_runs_are_deleted_for_good_not_only_marked(tmp_path: Path) -> None:
    """Deleted runs, artifacts and models of the tenant are gone from the database; a neighbour's stay."""
    url = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    experiment = client.create_experiment("adaptive.tiny", artifact_location=(tmp_path / "art").as_uri())
    file = tmp_path / "adapter.safetensors"
    runs = {}
    for tenant in ("acme", "other"):
        run = client.create_run(experiment, tags={"adaptive.tenant": tenant}, run_name=f"canary-{tenant}")
        runs[tenant] = run
        file.write_bytes(b"weights of " + tenant.encode())
        client.log_artifact(run.info.run_id, str(file))
        name = f"drafter.tiny.{tenant}"
        client.create_registered_model(name)
        client.create_model_version(name, source=run.info.artifact_uri, run_id=run.info.run_id)
    marked = client.create_run(experiment, tags={"adaptive.tenant": "acme"}, run_name="canary-acme")
    client.delete_run(marked.info.run_id)  # half-written by a learner that was killed
    file.unlink()
    eraser = MlflowEraser(url, url, tmp_path / "art")
    assert eraser.erase("acme") == {"mlflow models": 1, "mlflow runs": 2}
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary-acme" not in everything
    assert b"weights of acme" not in everything
    assert runs["acme"].info.run_id.encode() not in everything
    assert b"canary-other" in everything
    assert b"weights of other" in everything
    assert eraser.find("other") == {"models": 1, "runs": 1}
    assert eraser.erase("acme") == {"mlflow models": 0, "mlflow runs": 0}


def test_without_the_servers_database_the_erasure_waits_for_mlflow_gc(tmp_path: Path) -> None:
    """The message says what to run, or what to set."""
    url = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    experiment = client.create_experiment("adaptive.tiny", artifact_location=(tmp_path / "art").as_uri())
    run = client.create_run(experiment, tags={"adaptive.tenant": "acme"})
    with pytest.raises(TrackingError, match=f"mlflow gc --run-ids {run.info.run_id}.*TRACKING_BACKEND_URL"):
        MlflowEraser(url, None, tmp_path / "art").erase("acme")
    assert MlflowEraser(url, url, tmp_path / "art").erase("acme")["mlflow runs"] == 1
