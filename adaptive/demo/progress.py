"""How a demo says what it is doing: a live table on a terminal, a line now and then in a log."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.live import Live

from adaptive.demo import view
from adaptive.up.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class DemoProgress(Progress):
    """The supervisor's progress, and the tenants' beside it."""

    @contextmanager
    def tables(self) -> Iterator[Callable[[str, float, Mapping[str, Mapping[str, Any]]], None]]:
        """The traffic, told by what `view.live_table` takes."""
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                yield lambda *frame: live.update(view.live_table(*frame), refresh=True)
        else:
            yield lambda *frame: self.say(view.live_line(*frame))
