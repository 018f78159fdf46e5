"""Log URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adaptive.settings import Settings
from collectors.kafka.address import KafkaAddress
from collectors.kafka.transport import KafkaTransport
from collectors.open import open_transport
from collectors.transport import TransportError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_default_of_the_settings_opens(tmp_path: Path) -> None:
    """The URL that Settings derive from home is a log, made where it is missing."""
    open_transport(Settings(home=tmp_path / "home").resolved_log_url).close()
    assert (tmp_path / "home" / "log.db").is_file()


def test_a_relative_path_has_three_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sqlite:///name lies in the working directory, as SQLAlchemy has it."""
    monkeypatch.chdir(tmp_path)
    open_transport("sqlite:///here.db").close()
    assert (tmp_path / "here.db").is_file()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "log.db", "redis://host", ""])
def test_other_urls_are_refused(url: str) -> None:
    """The error names the URL and the forms that work."""
    with pytest.raises(TransportError, match=r"names no log: use sqlite:///relative/path.*kafka://host:port"):
        open_transport(url)


def test_kafka_is_reached_on_use() -> None:
    """A cluster that is away does not stop a process from starting."""
    transport = open_transport("kafka://127.0.0.1:9,127.0.0.1:10")
    assert isinstance(transport, KafkaTransport)
    transport.close()


def test_an_address_names_brokers_and_a_prefix() -> None:
    """Topics and groups of an installation that shares a cluster carry its prefix, and only its own count."""
    address = KafkaAddress.parse("kafka://a:9092,[::1]:9093?prefix=staging.")
    assert address.servers == ("a:9092", "[::1]:9093")
    assert address.full("adaptive.x.v1") == "staging.adaptive.x.v1"
    assert address.short("staging.adaptive.x.v1") == "adaptive.x.v1"
    assert address.short("adaptive.x.v1") is None
    plain = KafkaAddress.parse("kafka://a:9092/")
    assert (plain.prefix, plain.full("t"), plain.short("t")) == ("", "t", "t")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kafka://", "names no brokers"),
        ("kafka://host", "'host' is no host:port"),
        ("kafka://a:9092,user@b:9092", "'user@b:9092' is no host:port"),
        ("kafka://a:9092?acks=0", "'acks'.*ADAPTIVE_KAFKA_"),
        ("kafka://a:9092?prefix=Bad/", "prefix 'Bad/'"),
    ],
)
def test_wrong_kafka_urls_say_what_is_wrong(url: str, reason: str) -> None:
    """Before anything is connected."""
    with pytest.raises(TransportError, match=rf"log_url.*{reason}"):
        open_transport(url)
