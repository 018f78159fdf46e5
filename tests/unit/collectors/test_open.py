"""Log URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adaptive.settings import Settings
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
    with pytest.raises(TransportError, match=r"names no log: use sqlite:///relative/path"):
        open_transport(url)


def test_kafka_is_announced() -> None:
    """kafka:// says that it is still to come."""
    with pytest.raises(TransportError, match=r"kafka://host:9092.*arrives with the kafka transport"):
        open_transport("kafka://host:9092")
