"""`adaptive policy replay` over a file and over the log."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from adaptive.contracts import TOPIC_ARM_SCORED, Arm, ArmScore, ArmScored, encode
from adaptive.settings import Settings
from collectors.open import open_transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result


def scored(number: int, tenant: str = "acme") -> ArmScored:
    """A trace that the adapter verifies in two thirds of turbo's steps."""
    scores = [ArmScore(Arm.TURBO, 0, 30, 120, 30), ArmScore(Arm.ADAPTER, 1, 20, 80, 40)]
    return ArmScored(tenant, f"r{number}:0", float(number), "t", "d", 10, 4, scores)


def test_replay_reads_a_file(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """Every policy with its regret; other tenants and repeated traces do not count."""
    path = tmp_path / "scored.jsonl"
    messages = [*map(scored, range(40)), scored(3), scored(99, "other")]
    path.write_bytes(b"\n".join(msgspec.json.encode(message) for message in messages))
    result = adaptive("policy", "replay", "--traces", path, "--tenant", "acme", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["traces"] == 40
    assert found["policies"]["always adapter@1"]["regret"] == 0
    assert 0 <= found["policies"]["hedge"]["regret"] < 0.05
    assert "hedge" in adaptive("policy", "replay", "--traces", path, "--tenant", "acme").stdout


def test_replay_reads_the_log(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """What learners scored, unreadable records left out."""
    home = tmp_path / "home"
    home.mkdir()
    with closing(open_transport(Settings(home=home).resolved_log_url)) as transport:
        transport.send(TOPIC_ARM_SCORED, "acme", b"\xc1 nonsense")
        for number in range(5):
            transport.send(TOPIC_ARM_SCORED, "acme", encode(scored(number)))
    result = adaptive("policy", "replay", "--home", home, "--tenant", "acme", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["traces"] == 5
    missing = adaptive("policy", "replay", "--home", home, "--tenant", "nobody")
    assert missing.exit_code == 1
    assert "no scored trace of tenant 'nobody'" in missing.stderr


def test_a_broken_line_is_named(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """File, line and field."""
    path = tmp_path / "scored.jsonl"
    path.write_text('{"tenant": 7}\n')
    result = adaptive("policy", "replay", "--traces", path, "--tenant", "acme")
    assert result.exit_code == 1
    assert "line 1" in result.stderr
    assert "tenant" in result.stderr
