"""What is on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from adaptive.demo import view

if TYPE_CHECKING:
    from rich.console import RenderableType


def text(renderable: RenderableType) -> str:
    """As a wide terminal shows it."""
    console = Console(width=160, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def row(**state: Any) -> dict[str, Any]:
    """A tenant of the live table."""
    return {"requests": 12, "failed": 1, "tokens_per_second": 34.56, "state": state}


def test_a_tenant_that_has_just_begun() -> None:
    """Before the controller knows anything there is nothing to show but requests."""
    shown = text(view.live_table("traffic", 61.4, {"tools": row()}))
    line = next(line for line in shown.splitlines() if "tools" in line)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "tools",
        "12",
        "1",
        "34.6",
        "-",
        "-",
        "turbo",
        "-",
    ]
    assert "traffic  (61 s left)" in shown


def test_a_tenant_with_an_adapter() -> None:
    """Tau of turbo and of the champion's version, not of an older one; what the learner is at."""
    state = {
        "champion": 3,
        "arms": [
            {"arm": "off", "version": 0, "tau": None},
            {"arm": "turbo", "version": 0, "tau": 2.041},
            {"arm": "adapter", "version": 2, "tau": 2.2},
            {"arm": "adapter", "version": 3, "tau": 2.617},
        ],
        "learning": {"training": "idle", "tokens_seen": 5120},
    }
    shown = text(view.live_table("traffic", -3.0, {"idioma": row(**state)}))
    line = next(line for line in shown.splitlines() if "idioma" in line)
    assert [cell.strip() for cell in line.split("│")[5:9]] == [
        "2.04",
        "2.62",
        "adapter@3",
        "idle, 5120 tokens",
    ]
    assert "(0 s left)" in shown


def test_the_summary_shows_what_each_arm_reached() -> None:
    """Unmeasured numbers are dashes."""
    shown = text(
        view.summary(
            {
                "idioma": {
                    "no_speculation": {"tokens_per_second": 18.2},
                    "turbo": {"tokens_per_second": 25.0, "tau": 2.0},
                    "adapted": {"tokens_per_second": 37.5, "tau": 2.75},
                    "versions": [{}, {}],
                },
                "tools": {
                    "no_speculation": {"tokens_per_second": None},
                    "turbo": {"tokens_per_second": None, "tau": None},
                    "adapted": {"tokens_per_second": None, "tau": None},
                    "versions": [],
                },
            }
        )
    )
    rows = {
        cells[0]: cells[1:]
        for line in shown.splitlines()
        if "│" in line
        for cells in [[cell.strip() for cell in line.split("│")[1:-1]]]
    }
    assert rows["idioma"] == ["18.20", "25.00", "37.50", "2.00", "2.75", "2"]
    assert rows["tools"] == ["-", "-", "-", "-", "-", "0"]
