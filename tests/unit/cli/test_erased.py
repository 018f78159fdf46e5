"""`adaptive tenants erase` and `check-erased`, on a real controller, log, store and database."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from adaptive.cli.erased import prove_erased
from adaptive.contracts import (
    TOPIC_ENGINE_TELEMETRY,
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    TenantErased,
    Watermark,
    encode,
)
from adaptive.settings import Settings
from collectors.erasure import mention
from collectors.open import open_transport
from collectors.safetensors import TensorData, serialize
from collectors.sqlite.consumer import SqliteConsumer
from collectors.store import TensorStore
from learners.ledger import Ledger
from learners.paths import LearnerPaths
from learners.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

    from collectors.transport import LogRecord


def adapter(path: Path, tenant: str) -> None:
    """An adapter file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head, *parts = serialize({"a": TensorData("U8", (2,), b"xx")})
    text = json.dumps(json.loads(bytes(head)[8:]) | {"__metadata__": {"tenant": tenant}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def plant(settings: Settings, place: str) -> None:
    """Leave something of acme in one place."""
    home, paths = settings.home, LearnerPaths(settings.home)
    if place.startswith("log "):
        log = open_transport(settings.resolved_log_url)
        topic = place.removeprefix("log ")
        by_value = topic == TOPIC_ENGINE_TELEMETRY
        log.send(topic, "engine" if by_value else "acme", b"\x91" + mention("acme"))
        log.close()
    elif place == "store":
        TensorStore(settings.resolved_store_url).put("acme", "a", {"a": TensorData("U8", (1,), b"x")})
    elif place == "learner ledger":
        ledger = Ledger(paths.ledger)
        ledger._count("acme", "no_consent")
        ledger.close()
    elif place == "learner replay":
        path = Replay(paths.replay)._path("acme", 1)
        path.parent.mkdir(parents=True)
        path.touch()
    elif place in {"learner champions", "learner challengers", "endpoint adapters", "mlflow artifacts"}:
        directory = {
            "learner champions": paths.champions,
            "learner challengers": paths.updates / "3",
            "endpoint adapters": home / "endpoint" / "adapters",
            "mlflow artifacts": home / "mlartifacts" / "run" / "artifacts",
        }[place]
        adapter(directory / "a.safetensors", "acme")
    elif place in {"learner status", "endpoint state"}:
        path = paths.status if place == "learner status" else home / "endpoint" / "state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"accounts": {"acme": {}}}))
    else:
        raise AssertionError(place)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A home whose log says that acme was erased, next to a neighbour who was not."""
    made = Settings(home=tmp_path / "home")
    log = open_transport(made.resolved_log_url)
    log.send(TOPIC_TENANT_ERASED, "acme", encode(TenantErased("acme", "e", 0, 1.0, [])))
    log.send(TOPIC_TRACE_RECORDED, "acme2", mention("acme2"))
    log.close()
    TensorStore(made.resolved_store_url).put("acme2", "a", {"a": TensorData("U8", (1,), b"x")})
    adapter(made.home / "endpoint" / "adapters" / "b.safetensors", "acme2")
    return made


def test_an_empty_home_passes_and_neighbours_do_not_count(settings: Settings) -> None:
    """A tenant whose name begins the same is somebody else."""
    proof = prove_erased(settings, "acme")
    assert [one for one in proof.findings if not one.passed] == []
    assert proof.passed
    assert not prove_erased(settings, "acme2").passed


@pytest.mark.parametrize(
    "place",
    [
        f"log {TOPIC_TRACE_RECORDED}",
        f"log {TOPIC_TRACE_RECORDED}.dlq",
        f"log {TOPIC_ENGINE_TELEMETRY}",
        "store",
        "learner ledger",
        "learner replay",
        "learner challengers",
        "learner champions",
        "learner status",
        "mlflow artifacts",
        "endpoint state",
        "endpoint adapters",
    ],
)
def test_what_is_left_is_found_where_it_is(settings: Settings, place: str) -> None:
    """One thing left in one place fails the proof, and that place alone."""
    plant(settings, place)
    proof = prove_erased(settings, "acme")
    assert [(one.place, one.left) for one in proof.findings if not one.passed] == [(place, 1)]


def test_a_watermark_alone_does_not_pass_on_the_embedded_log(settings: Settings) -> None:
    """There the records themselves must be gone."""
    plant(settings, f"log {TOPIC_TRACE_RECORDED}")
    log = open_transport(settings.resolved_log_url)
    marks = [Watermark(TOPIC_TRACE_RECORDED, part, 100) for part in log.end_offsets(TOPIC_TRACE_RECORDED)]
    log.send(TOPIC_TENANT_ERASED, "acme", encode(TenantErased("acme", "e", 0, 1.0, marks)))
    log.close()
    assert not prove_erased(settings, "acme").passed


def test_a_place_that_cannot_be_looked_at_proves_nothing(settings: Settings) -> None:
    """Better a failed check than a false promise."""
    away = settings.model_copy(update={"tracking_url": "http://127.0.0.1:9"})
    mlflow = [one for one in prove_erased(away, "acme").findings if one.place == "mlflow"]
    assert [(one.left, one.passed) for one in mlflow] == [(None, False)]


def test_a_topic_that_was_not_read_to_its_end_proves_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that falls silent with records left has not shown that they are somebody else's."""
    plant(settings, f"log {TOPIC_TRACE_RECORDED}")
    poll = SqliteConsumer.poll

    def silent(self: SqliteConsumer, timeout: float, max_records: int = 500) -> list[LogRecord]:
        there = (TOPIC_TRACE_RECORDED, 0) in self.lag()
        return [] if there else poll(self, timeout, max_records)

    monkeypatch.setattr(SqliteConsumer, "poll", silent)
    monkeypatch.setattr("collectors.inspection._SILENCE_SECONDS", 0.05)
    proof = prove_erased(settings, "acme")
    assert not proof.passed
    assert [one.left for one in proof.findings if one.place.startswith("log")] == [None]


def test_checking_a_log_that_is_not_there_does_not_make_it(
    adaptive: Callable[..., Result], tmp_path: Path
) -> None:
    """A mistyped --home is an error, and no empty log that has nothing of anybody."""
    result = adaptive("tenants", "check-erased", "acme", "--home", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert "there is no log at" in result.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("controller")
def test_erase_and_check_from_the_command_line(adaptive: Callable[..., Result]) -> None:
    """Created, erased, checked: every step says what it did, the exit codes are right."""
    port = ["--control-port", os.environ["ADAPTIVE_CONTROL_PORT"]]
    assert adaptive("tenants", "create", "acme", *port).exit_code == 0
    before = adaptive("tenants", "check-erased", "acme")
    assert before.exit_code == 1
    assert "FAIL" in before.output
    erased = adaptive("tenants", "erase", "acme", "--yes", "--wait", "20", *port)
    assert erased.exit_code == 0, erased.output
    assert "tenant acme erased (job erase_" in erased.output
    listed = adaptive("tenants", "erasures", *port)
    assert "done" in listed.output
    after = adaptive("tenants", "check-erased", "acme")
    assert after.exit_code == 0, after.output
    assert "nothing of tenant acme is left" in after.output
    assert "FAIL" not in after.output
    assert adaptive("tenants", "erase", "acme", "--yes", *port).exit_code == 1
    asked = json.loads(adaptive("tenants", "check-erased", "acme", "--json").output)
    assert asked["passed"]
    assert Path(os.environ["ADAPTIVE_HOME"]).exists()
