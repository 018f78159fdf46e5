"""Curves of tau against requests as an SVG file; equal curves give equal bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.bench.online import Step


def draw(path: Path, curves: Mapping[str, Sequence[Step]], vertical: int | None = None) -> None:
    """One panel per workload: turbo, what serves, and refused challengers as crosses.

    Args:
        path: SVG file to write.
        curves: Updates by workload.
        vertical: Requests at which to draw a line (the target's change).
    """
    import matplotlib as mpl  # noqa: PLC0415  # slow to import

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = path.stem  # ids that do not change from run to run
    from matplotlib import pyplot as plt  # noqa: PLC0415  # after the backend is chosen

    figure, panels = plt.subplots(
        1, max(1, len(curves)), figsize=(3.2 * max(1, len(curves)), 3.0), squeeze=False
    )
    for panel, (name, curve) in zip(panels[0], curves.items(), strict=False):
        at = [step.requests for step in curve]
        panel.plot(
            [0, *at], [curve[0].turbo, *(step.turbo for step in curve)], "--", color="grey", label="turbo"
        )
        panel.plot(
            [0, *at], [curve[0].turbo, *(step.serving for step in curve)], "o-", markersize=3, label="serving"
        )
        refused = [step for step in curve if step.token_steps and not step.published]
        panel.plot(
            [s.requests for s in refused], [s.challenger for s in refused], "x", color="red", label="refused"
        )
        if vertical is not None:
            panel.axvline(vertical, color="black", linewidth=0.8, linestyle=":")
        panel.set_title(name)
        panel.set_xlabel("requests")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("walked tau on the probe")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
