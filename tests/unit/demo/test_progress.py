"""What a demo says where nothing can be drawn over."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from adaptive.demo.progress import DemoProgress

TENANTS: dict[str, dict[str, Any]] = {
    "tools": {"requests": 3, "failed": 0, "tokens_per_second": 21.0, "state": {"champion": 2}}
}


def test_a_log_gets_a_line_for_every_new_phase_and_every_half_minute() -> None:
    """Lines that differ in numbers only are spared; none is drawn over."""
    out, now = io.StringIO(), [100.0]
    progress = DemoProgress(Console(file=out), clock=lambda: now[0])
    with progress.messages("starting") as say:
        say("preparing the model x (once)")
        say("waiting for serve (1 s)")
        now[0] += 29
        say("waiting for serve (30 s)")
        now[0] += 1
        say("waiting for serve (31 s)")
    with progress.tables() as show:
        show("traffic and learning", 500.4, TENANTS)
        show("traffic and learning", 499.4, TENANTS)
    assert out.getvalue().splitlines() == [
        "starting",
        "preparing the model x (once)",
        "waiting for serve (1 s)",
        "waiting for serve (31 s)",
        "traffic and learning (500 s left); tools: 3 requests, 0 failed, 21.0 tok/s, adapter@2, learning: -",
    ]


def test_a_terminal_gets_the_table() -> None:
    """It is drawn in place."""
    out = io.StringIO()
    with DemoProgress(Console(file=out, force_terminal=True, width=120)).tables() as show:
        show("traffic and learning", 500.0, TENANTS)
    assert "adaptive demo" in out.getvalue()


def test_a_phase_that_fails_leaves_no_spinner_behind() -> None:
    """What is said after it is a line again."""
    out = io.StringIO()
    progress = DemoProgress(Console(file=out, force_terminal=True, width=120))
    with pytest.raises(RuntimeError), progress.messages("starting"):
        raise RuntimeError
    progress.say("drained")
    assert out.getvalue().splitlines()[-1].endswith("drained")
