"""Making topics and comparing them with the settings, in every log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from adaptive import contracts
from adaptive.cli.main import app
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.provision import make_topics, open_topic_admin, specified_topics
from collectors.transport import TransportUnavailableError, UnknownTopicError

if TYPE_CHECKING:
    from pathlib import Path

    from deploy.kafka.broker import Broker

EVERY = {*contracts.TOPICS, *(name + ".dlq" for name in contracts.TOPICS)}


@pytest.fixture(params=["sqlite", "kafka"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings of a log without topics."""
    url = f"sqlite:///{tmp_path}/log.db"
    if request.param == "kafka":
        broker: Broker = request.getfixturevalue("kafka_broker")
        url = f"kafka://{broker.address}?prefix={tmp_path.name.replace('_', '').lower()[:20]}-{id(request)}."
    return Settings(home=tmp_path, log_url=url, kafka_partitions=3)


def test_every_topic_of_the_contracts_is_made_once(settings: Settings) -> None:
    """Dead-letter topics too; a second time changes nothing and finds nothing to say."""
    specs = specified_topics(settings)
    with open_topic_admin(settings) as admin:
        assert {state.partitions for state in admin.describe(specs)} == {0}
        made = admin.create(specs)
        assert {state.name for state in made} == EVERY
        assert all(state.created and not state.differences for state in made)
        again = admin.create(specs)
    assert not any(state.created or state.updated or state.differences for state in again)
    transport = open_transport(settings.resolved_log_url)
    transport.send(contracts.TOPIC_ARM_SCORED + ".dlq", "a", b"")
    transport.close()
    assert make_topics(settings) == []


def test_what_differs_is_told_and_update_mends_it(settings: Settings) -> None:
    """A longer retention is named with both values; partitions can only be told."""
    with open_topic_admin(settings) as admin:
        admin.create(specified_topics(settings))
        longer = Settings(home=settings.home, log_url=settings.log_url, retention_days=14, kafka_partitions=5)
        specs = specified_topics(longer)
        traces = [spec.name for spec in specs].index(contracts.TOPIC_TRACE_RECORDED)
        said = " ".join(admin.describe(specs)[traces].differences)
        assert "retention" in said
        assert "specified" in said
        updated = admin.create(specs, update=True)[traces]
    assert updated.updated
    assert all("partitions is 3, specified 5" in difference for difference in updated.differences)


def test_kafka_topics_are_not_made_by_use(kafka_broker: Broker) -> None:
    """The error names the command that makes them."""
    transport = open_transport(f"kafka://{kafka_broker.address}?prefix=nobody.")
    with pytest.raises(UnknownTopicError, match="adaptive topics create"):
        transport.send(contracts.TOPIC_TRACE_RECORDED, "a", b"")
    transport.close()


def test_the_command_makes_and_shows(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """`describe` fails while topics are missing; `create` makes them; both show them all."""
    monkeypatch.chdir(settings.home)
    runner = CliRunner()
    url = ("--log-url", str(settings.log_url))
    missing = runner.invoke(app, ["topics", "describe", *url])
    assert missing.exit_code == 1
    created = runner.invoke(app, ["topics", "create", *url])
    assert created.exit_code == 0
    assert all(name in created.stdout for name in EVERY)
    shown = runner.invoke(app, ["topics", "describe", *url])
    assert shown.exit_code == 0
    assert "as specified" in shown.stdout
    doctor = runner.invoke(app, ["doctor", *url])
    assert "ok       log:" in doctor.stdout


def test_doctor_and_topics_say_when_kafka_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line each, no traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTIVE_KAFKA_TIMEOUT_SECONDS", "0.5")
    url = ("--log-url", "kafka://127.0.0.1:9")
    result = CliRunner().invoke(app, ["topics", "create", *url])
    assert result.exit_code == 1
    assert "cannot reach Kafka at 127.0.0.1:9" in result.stderr
    assert (
        "problem  log: kafka://127.0.0.1:9 cannot be used" in CliRunner().invoke(app, ["doctor", *url]).stdout
    )
    with pytest.raises(TransportUnavailableError):
        make_topics(Settings(home=tmp_path, log_url=url[1]))
