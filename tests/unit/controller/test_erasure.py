"""Erasing a tenant: what the controller removes, announces, waits for and keeps on record."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_ERASURE_ACKNOWLEDGED,
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    Arm,
    ErasureAcknowledged,
    RemovedItems,
    TenantErased,
    encode,
)
from collectors.erasure import ErasedTenants
from collectors.open import open_transport
from collectors.safetensors import TensorData
from collectors.sqlite import SqliteTransport
from collectors.store import StoreUnavailableError, TensorStore
from collectors.transport import TransportUnavailableError
from controller import erasing
from controller.app import create_app
from controller.erasure import SILENT_SECONDS
from tests.unit.controller.conftest import ADMIN_KEY, Bench, counters, lead, published

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = b"canary-of-acme"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "POLL_SECONDS", 0.0)


def work(bench: Bench) -> None:
    """Let the erasure get as far as it can."""
    for _ in range(3):
        bench.control.erasure.round()
        bench.control.relay.round()


def restart(bench: Bench) -> None:
    """Start another controller on the same files."""
    bench.app = create_app(bench.settings, bench.clock)
    lead(bench.control)
    bench.client = TestClient(bench.app, headers={"Authorization": f"Bearer {ADMIN_KEY}"})


def job(bench: Bench, job_id: str) -> Any:
    """Show a job."""
    return bench.request("GET", f"/v1/jobs/{job_id}")


def erase(bench: Bench, tenant: str = "acme") -> Any:
    """Ask for an erasure and let it get on."""
    made = bench.request("DELETE", f"/v1/tenants/{tenant}", status=202)
    work(bench)
    return made


def answer(bench: Bench, job_id: str, process: str, *, done: bool = True, **fields: Any) -> None:
    """Act as a learner or an engine."""
    message = ErasureAcknowledged("acme", job_id, process, bench.clock.now, done, **fields)
    bench.transport.send(TOPIC_ERASURE_ACKNOWLEDGED, "acme", encode(message))
    work(bench)


def announced(bench: Bench) -> TenantErased | None:
    """The newest announcement about acme."""
    with ErasedTenants(bench.transport) as view:
        view.poll()
        return view.latest.get("acme")


def fill(bench: Bench) -> TensorStore:
    """Give acme a life: key, version, traffic, traces and objects."""
    bench.create()
    bench.create("other")
    bench.request("POST", "/v1/tenants/acme/keys", status=201)
    bench.publish(4)
    bench.report([counters(Arm.TURBO, 0, 100, 50), counters(Arm.TURBO, 0, 100, 50, "other")])
    for tenant in ("acme", "other"):
        bench.transport.send(TOPIC_TRACE_RECORDED, tenant, SECRET)
    store = TensorStore(bench.settings.resolved_store_url)
    for tenant in ("acme", "other"):
        store.put(tenant, "traces/ab/cd", {"features": TensorData("U8", (14,), SECRET)})
    return store


def test_an_erasure_from_the_request_to_the_record(bench: Bench) -> None:
    """Rows, records and objects go at once; the job waits for learner and engine, then seals."""
    store = fill(bench)
    made = erase(bench)
    assert (made["state"], made["step"], made["retired"]) == ("running", "announce", ["acme@4"])
    bench.request("GET", "/v1/tenants/acme", status=404)
    assert [*bench.accounts(), *bench.policies()] == ["other", "other"]
    assert store.tenant_objects("acme") == 0
    assert store.tenant_objects("other") == 1
    now = job(bench, made["id"])
    assert now["step"] == "acknowledge"
    assert now["waiting"] == "engine engine-1: has not answered yet; learner: has not answered yet"
    message = announced(bench)
    assert message is not None
    assert (message.sealed, message.last_version, message.erasure_id) == (False, 4, made["id"])
    assert message.kafka_gone_by is None, "the embedded log removes the bytes at once"

    answer(bench, made["id"], "engine engine-1", removed=[RemovedItems("records", 2)])
    answer(bench, made["id"], "learner", done=False, waiting="MLflow is away")
    assert job(bench, made["id"])["waiting"] == "learner: MLflow is away"
    answer(bench, made["id"], "learner", removed=[RemovedItems("replay", 3)])
    done = job(bench, made["id"])
    assert (done["state"], done["waiting"], done["finished_at"]) == ("done", None, bench.clock.now)
    assert done["removed"]["database keys"] == 1
    assert done["removed"]["store objects"] == 1
    assert done["removed"][f"log {TOPIC_TRACE_RECORDED}"] == 1
    assert {one["process"]: one["removed"] for one in done["answers"]} == {
        "engine engine-1": {"records": 2},
        "learner": {"replay": 3},
    }
    sealed = announced(bench)
    assert sealed is not None
    assert sealed.sealed
    assert [item["id"] for item in bench.request("GET", "/v1/erasures")["data"]] == [made["id"]]


def test_nothing_of_the_tenant_is_in_the_files_afterwards(bench: Bench) -> None:
    """Byte by byte, in database, log and store; its neighbour's canary stays."""
    fill(bench)
    key = bench.request("POST", "/v1/tenants/acme/keys", status=201)["prefix"].encode()
    home = bench.settings.home

    def holding(secret: bytes) -> set[str]:
        return {p.name for p in home.rglob("*") if p.is_file() and secret in p.read_bytes()}

    assert holding(key) & {"control.db", "control.db-wal"}
    made = erase(bench)
    answer(bench, made["id"], "engine engine-1")
    answer(bench, made["id"], "learner")
    assert job(bench, made["id"])["state"] == "done"
    assert holding(key) == set()
    assert len(list((home / "store").rglob("*.safetensors"))) == 1
    with bench.control.database.read() as session:
        dump = "\n".join(session.connection().connection.driver_connection.iterdump())  # type: ignore[union-attr]  # sqlite3's
    lines = [line for line in dump.splitlines() if "acme" in line]
    assert lines
    records = ('INSERT INTO "erasures"', 'INSERT INTO "audit"')
    assert all(line.startswith(records) for line in lines), "only the erasure's and the audit log's records"


@pytest.mark.parametrize("rounds", range(5))
def test_a_controller_killed_at_any_step_finishes_after_a_restart(bench: Bench, rounds: int) -> None:
    """Whatever was done, or half done, the next controller goes on from the row."""
    store = fill(bench)
    made = bench.request("DELETE", "/v1/tenants/acme", status=202)
    steps: list[Callable[[str], object]] = [
        bench.control.erasure._step,
        lambda _: bench.control.relay.round(),
    ]
    for number in range(rounds):
        steps[number % 2](made["id"])
    bench.control.erasure.reset()
    bench.control.policy.reset()
    restart(bench)
    work(bench)
    answer(bench, made["id"], "learner")
    answer(bench, made["id"], "engine engine-1")
    assert job(bench, made["id"])["state"] == "done"
    assert store.tenant_objects("acme") == 0
    message = announced(bench)
    assert message is not None
    assert message.sealed
    bench.control.erasure.reset()


def test_what_is_away_delays_the_erasure_and_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store or log: the job says so, and goes on when they are back."""
    store = fill(bench)
    worker = bench.control.erasure

    def away(error: Exception) -> Callable[..., Any]:
        def fail(*_: object) -> Any:
            raise error

        return fail

    with monkeypatch.context() as patch:
        patch.setattr(worker._transport, "end_offsets", away(TransportUnavailableError("no broker")))
        made = erase(bench)
        assert "no broker" in job(bench, made["id"])["waiting"]
    bench.clock.now += erasing.RETRY_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(worker._store, "delete_tenant", away(StoreUnavailableError("store down")))
        work(bench)
        waiting = job(bench, made["id"])
        assert (waiting["step"], "store down" in waiting["waiting"]) == ("remove", True)
    bench.clock.now += erasing.RETRY_SECONDS
    work(bench)
    assert store.tenant_objects("acme") == 0
    assert job(bench, made["id"])["step"] == "acknowledge"


def test_a_silent_engine_is_not_waited_for_and_a_tenant_that_never_learned_needs_no_learner(
    bench: Bench,
) -> None:
    """An engine that was taken down must not hold an erasure up for ever."""
    bench.request("POST", "/v1/tenants", {"id": "acme"}, 201)
    bench.report([])
    made = erase(bench)
    assert job(bench, made["id"])["waiting"] == "engine engine-1: has not answered yet"
    bench.clock.now += SILENT_SECONDS + 1
    work(bench)
    assert job(bench, made["id"])["state"] == "done"


def test_asking_twice_is_one_erasure_and_unknown_tenants_are_not_found(bench: Bench) -> None:
    """A client that repeats itself gets the same job; done, the tenant is unknown."""
    bench.create()
    first = erase(bench)
    assert erase(bench)["id"] == first["id"]
    answer(bench, first["id"], "learner")
    bench.request("DELETE", "/v1/tenants/acme", status=404)
    bench.request("GET", "/v1/jobs/erase_nothing", status=404)


def test_a_tenant_of_the_same_name_starts_afresh(bench: Bench) -> None:
    """Not before the erasure is done; with the next generation, and numbers above the former tenant's."""
    bench.create()
    bench.publish(4)
    before = bench.policies()["acme"].policy_version
    made = erase(bench)
    refused = bench.request("POST", "/v1/tenants", {"id": "acme"}, 409)
    assert made["id"] in refused["detail"]
    answer(bench, made["id"], "learner")
    bench.create()
    account, policy = bench.accounts()["acme"], bench.policies()["acme"]
    assert (account.generation, policy.champion) == (1, None)
    assert policy.policy_version > before
    bench.transport.send(TOPIC_DRAFTER_PUBLISHED, "other", encode(published(1, "other")))
    second = erase(bench)
    answer(bench, second["id"], "learner")
    message = announced(bench)
    assert message is not None
    assert (message.generation, message.last_version) == (1, 4)


def test_numbers_survive_a_lost_database(bench: Bench) -> None:
    """The log still knows that the tenant was erased, and how far it had counted."""
    bench.create()
    made = erase(bench)
    answer(bench, made["id"], "learner")
    revision = announced(bench).revision  # type: ignore[union-attr]  # it was announced
    bench.control.database.close()
    for name in ("control.db", "control.db-wal", "control.db-shm"):
        (bench.settings.home / name).unlink(missing_ok=True)
    restart(bench)
    bench.create()
    account = bench.accounts()["acme"]
    assert account.generation == 1
    assert account.revision > revision


def test_versions_made_with_the_tenants_data_are_retired_and_named(bench: Bench) -> None:
    """Another tenant's champion that was derived from it goes back to turbo, and cannot come back."""
    bench.create()
    bench.create("other")
    store = TensorStore(bench.settings.resolved_store_url)
    stored = store.put("other", "adapters/2", {"a": TensorData("U8", (14,), SECRET)})
    version = published(2, "other")
    adapter = msgspec.structs.replace(version.adapter, uri=stored.uri)
    version = msgspec.structs.replace(version, adapter=adapter, derived_from=["acme", "other"])
    bench.transport.send(TOPIC_DRAFTER_PUBLISHED, "other", encode(version))
    bench.work()
    assert bench.tenant("other")["champion"] == 2
    made = erase(bench)
    assert made["retired"] == ["other@2"]
    assert bench.tenant("other")["champion"] is None
    assert bench.statuses("other") == {2: "erased"}
    assert bench.policies()["other"].champion is None
    bench.request("POST", "/v1/tenants/other/promote", {"version": 2}, 409)
    assert store.tenant_objects("other") == 0
    message = announced(bench)
    assert message is not None
    assert [one.version for one in message.retired] == [2]


def test_an_answer_to_another_erasure_changes_nothing(bench: Bench) -> None:
    """Late or foreign acknowledgements are passed over."""
    bench.create()
    made = erase(bench)
    answer(bench, "erase_other", "learner")
    assert job(bench, made["id"])["answers"] == []


def test_retention_reaches_engines_and_learners(bench: Bench) -> None:
    """A tenant's own limits are part of its account; null takes them back."""
    bench.create()
    bench.request("PATCH", "/v1/tenants/acme", {"retention_seconds": 3600, "retention_bytes": 1000})
    account = bench.accounts()["acme"]
    assert (account.retention_seconds, account.retention_bytes) == (3600.0, 1000)
    assert bench.tenant()["retention_bytes"] == 1000
    bench.request("PATCH", "/v1/tenants/acme", {"retention_seconds": None})
    assert bench.accounts()["acme"].retention_seconds is None
    bench.request("PATCH", "/v1/tenants/acme", {"retention_seconds": 0}, 422)


def test_a_tenants_own_retention_holds_on_the_embedded_log(bench: Bench) -> None:
    """By bytes, the newest stay, and by age; a neighbour keeps what it has, and so does the whole log."""
    for tenant in ("acme", "other"):
        bench.create(tenant)
        for number in range(5):
            bench.transport.send(TOPIC_TRACE_RECORDED, tenant, b"%d" % number * 1000)

    def left(tenant: str) -> list[bytes]:
        reader = bench.transport.consumer([TOPIC_TRACE_RECORDED], None)
        found = [record.value or b"" for record in reader.poll(0.0) if record.key == tenant]
        reader.close()
        return [value[:1] for value in found]

    bench.request("PATCH", "/v1/tenants/acme", {"retention_bytes": 200})
    work(bench)
    assert left("acme") == [b"3", b"4"], "compressed, a record takes some 90 bytes"
    bench.clock.now = time.time() + 7200
    bench.request("PATCH", "/v1/tenants/acme", {"retention_seconds": 3600, "retention_bytes": None})
    work(bench)
    assert left("acme") == []
    assert len(left("other")) == 5


def test_the_settings_retention_is_the_logs_and_stays_when_others_open_it(bench: Bench) -> None:
    """A process that opens the log without saying anything about retention changes nothing."""
    settings = bench.settings.model_copy(update={"retention_days": 0.5, "retention_bytes": 5 << 20})
    create_app(settings).state.control.database.close()
    log = open_transport(settings.resolved_log_url)
    assert isinstance(log, SqliteTransport)
    with log._database.read() as connection:
        row = connection.execute(
            "SELECT retention_seconds, retention_bytes FROM topic WHERE name = ?", (TOPIC_TRACE_RECORDED,)
        ).fetchone()
    assert tuple(row) == (43_200.0, 5 << 20)
    log.close()


def test_the_erased_topic_is_read_by_everybody(bench: Bench) -> None:
    """The announcement itself stays in the log, the tenant's records do not."""
    fill(bench)
    erase(bench)
    ends = bench.transport.end_offsets(TOPIC_TENANT_ERASED)
    assert sum(ends.values()) == 1
    assert json.dumps(job(bench, bench.request("GET", "/v1/erasures")["data"][0]["id"]))
