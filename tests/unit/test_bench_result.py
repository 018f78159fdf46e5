"""Joining the shards of a benchmark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.bench import result

if TYPE_CHECKING:
    from pathlib import Path


def shard(path: Path, cell: str, command: str) -> Path:
    """A shard with one cell."""
    spread = result.spread([1.0, 2.0, 3.0])
    path.write_text(
        json.dumps(
            {
                "name": "x",
                "date": "2026-12-01",
                "machine": "M",
                "commit": "c",
                "command": command,
                "notes": "n",
                "variants": {cell: {"tokens/s": spread}},
                "ratios": {cell: spread},
            }
        )
    )
    return path


@pytest.fixture(autouse=True)
def _docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "DIRECTORY", tmp_path / "benchmarks")
    monkeypatch.setattr(result, "PAGE", tmp_path / "benchmarks.md")
    result.DIRECTORY.mkdir()


def test_shards_are_joined_and_say_so(tmp_path: Path) -> None:
    """Every cell of every shard is in the result, whose machine and command tell of the shards."""
    shards = [
        shard(tmp_path / "1.json", "tools", "make bench NAME=x ARGS='--workloads tools'"),
        shard(tmp_path / "2.json", "code", "make bench NAME=x ARGS='--workloads code'"),
    ]
    joined = json.loads(result.merge("x", shards).read_text())
    assert set(joined["variants"]) == set(joined["ratios"]) == {"tools", "code"}
    assert "2 shards" in joined["machine"]
    assert "--workloads tools" in joined["command"]
    assert "--workloads code" in joined["command"]
    assert "tools" in result.PAGE.read_text()


def test_a_cell_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Joining never lets one shard's figure hide another's."""
    shards = [shard(tmp_path / f"{number}.json", "tools", "make bench NAME=x") for number in (1, 2)]
    with pytest.raises(ValueError, match="'tools' is in two shards"):
        result.merge("x", shards)
