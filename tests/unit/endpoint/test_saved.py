"""The state kept in home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from adaptive.contracts import AdapterReference
from adaptive.endpoint.saved import SavedState, StateFile
from tests.unit.endpoint.records import TARGET, TURBO, account, policy

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Accounts and policies, champions included; the directory is made."""
    file = StateFile(tmp_path / "endpoint" / "state.json")
    champion = AdapterReference("acme", 3, "file:///a", "5" * 64, TARGET, TURBO, 32)
    accounts = {"acme": account(), "other": account("other", revision=4)}
    policies = {"acme": policy(champion=champion, weight=0.25), "other": policy("other")}
    file.save(accounts, policies)
    assert file.load() == SavedState(accounts, policies)
    file.save({}, {})
    assert file.load() == SavedState()


def test_no_file_is_an_empty_state(tmp_path: Path) -> None:
    """A first start has nothing to warn of."""
    with capture_logs() as logs:
        assert StateFile(tmp_path / "state.json").load() == SavedState()
    assert logs == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"accounts": {"acme": {"tenant": "acme"}}}', b'{"accounts": 4}'],
)
def test_an_unreadable_file_is_an_empty_state(tmp_path: Path, content: bytes) -> None:
    """The log still has everything: the endpoint starts, and says which file was no use."""
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        assert StateFile(path).load() == SavedState()
    assert [(line["log_level"], line["path"]) for line in logs] == [("warning", str(path))]


def test_a_write_that_fails_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced whole or not at all."""
    path = tmp_path / "state.json"
    file = StateFile(path)
    file.save({"acme": account()}, {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        file.save({}, {})
    monkeypatch.undo()
    assert list(file.load().accounts) == ["acme"]
