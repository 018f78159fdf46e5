"""The token that the processes of one home share."""

from __future__ import annotations

import stat
import threading
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from adaptive.internal_key import internal_key
from adaptive.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def test_the_configured_token_wins(tmp_path: Path) -> None:
    """With a token in the settings nothing is written."""
    settings = Settings(home=tmp_path / "home", internal_key=SecretStr("chosen"))
    assert internal_key(settings) == "chosen"
    assert not (tmp_path / "home").exists()


def test_a_token_is_made_once_and_kept_private(tmp_path: Path) -> None:
    """256 random bits, the same for every process of the home, another one for another home."""
    settings = Settings(home=tmp_path / "home")
    token = internal_key(settings)
    assert len(bytes.fromhex(token)) == 32
    assert internal_key(settings) == token
    assert internal_key(Settings(home=tmp_path / "other")) != token
    path = tmp_path / "home" / "internal_key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    """The file appears whole: nobody reads an empty or half-written token, and all read the same."""
    settings = Settings(home=tmp_path / "home")
    barrier = threading.Barrier(8)
    tokens: list[str] = []

    def start() -> None:
        barrier.wait()
        tokens.append(internal_key(settings))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1
    assert len(tokens[0]) == 64


def test_an_empty_token_is_refused(tmp_path: Path) -> None:
    """It would let every caller in; the error names the setting or the file."""
    with pytest.raises(ValueError, match="internal_key is empty: set ADAPTIVE_INTERNAL_KEY"):
        internal_key(Settings(home=tmp_path, internal_key=SecretStr("")))
    (tmp_path / "internal_key").write_text("\n")
    with pytest.raises(ValueError, match=r"internal_key is empty: delete .*internal_key"):
        internal_key(Settings(home=tmp_path))
