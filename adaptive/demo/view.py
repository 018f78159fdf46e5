"""The live table of a running demo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping


def live_table(phase: str, left_seconds: float, tenants: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """Render one frame.

    Args:
        phase: what is going on.
        left_seconds: until the bounded end.
        tenants: per tenant: requests, failed, tokens_per_second and `state` (the controller's view).
    """
    table = Table(title="adaptive demo", title_justify="left")
    for heading in (
        "tenant",
        "requests",
        "failed",
        "tok/s",
        "turbo tau",
        "adapter tau",
        "serving",
        "learning",
    ):
        table.add_column(heading, justify="left" if heading in {"tenant", "serving", "learning"} else "right")
    for name, tenant in tenants.items():
        state = tenant["state"]
        table.add_row(
            name,
            str(tenant["requests"]),
            str(tenant["failed"]),
            f"{tenant['tokens_per_second']:.1f}",
            _number(_tau(state, "turbo")),
            _number(_tau(state, "adapter", state.get("champion") or 0)),
            _serving(state),
            _learning(state.get("learning")),
        )
    return Group(table, Text(f"{phase}  ({max(left_seconds, 0):.0f} s left)"))


def live_line(phase: str, left_seconds: float, tenants: Mapping[str, Mapping[str, Any]]) -> str:
    """The same in a line, for where nothing can be drawn over."""
    parts = [
        f"{name}: {tenant['requests']} requests, {tenant['failed']} failed, "
        f"{tenant['tokens_per_second']:.1f} tok/s, {_serving(tenant['state'])}, "
        f"learning: {_learning(tenant['state'].get('learning'))}"
        for name, tenant in tenants.items()
    ]
    return f"{phase} ({max(left_seconds, 0):.0f} s left); {'; '.join(parts)}"


def summary(tenants: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """The report as a table: what each arm reached on the probe prompts."""
    table = Table(
        title="same never-trained prompts, greedy, concurrency 1, learning paused", title_justify="left"
    )
    for heading in (
        "tenant",
        "no speculation tok/s",
        "turbo tok/s",
        "adapted tok/s",
        "turbo tau",
        "adapted tau",
        "versions",
    ):
        table.add_column(heading, justify="left" if heading == "tenant" else "right")
    for name, tenant in tenants.items():
        table.add_row(
            name,
            _number(tenant["no_speculation"]["tokens_per_second"]),
            _number(tenant["turbo"]["tokens_per_second"]),
            _number(tenant["adapted"]["tokens_per_second"]),
            _number(tenant["turbo"]["tau"]),
            _number(tenant["adapted"]["tau"]),
            str(len(tenant["versions"])),
        )
    return table


def _tau(state: Mapping[str, Any], arm: str, version: int = 0) -> float | None:
    for row in state.get("arms", []):
        if row["arm"] == arm and row["version"] == version:
            tau: float | None = row["tau"]
            return tau
    return None


def _serving(state: Mapping[str, Any]) -> str:
    return f"adapter@{state['champion']}" if state.get("champion") else "turbo"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _learning(learning: Mapping[str, Any] | None) -> str:
    if not learning:
        return "-"
    return f"{learning.get('training', '-')}, {learning.get('tokens_seen', 0)} tokens"
