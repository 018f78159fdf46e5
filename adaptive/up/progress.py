"""How the supervisor says what it is doing: a spinner on a terminal, a line now and then in a log."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.status import Status

_LINE_SECONDS: Final = 30.0


class Progress:
    """Shows progress on a console.

    Args:
        console: Where to; anything but a terminal gets whole lines, those that differ in numbers only
            at most every half minute.
        clock: Seconds that only grow.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console: Final = console
        self._clock: Final = clock
        self._status: Status | None = None
        self._kind = ""
        self._next_line = 0.0

    @contextmanager
    def messages(self, phase: str) -> Iterator[Callable[[str], None]]:
        """A phase that is told in single sentences."""
        if self._console.is_terminal:
            with self._console.status(phase) as status:
                self._status = status
                try:
                    yield self.say
                finally:
                    self._status = None
        else:
            self.say(phase)
            yield self.say

    def say(self, text: str) -> None:
        """Say a sentence: beside the spinner while there is one, else as a line."""
        if self._status is not None:
            self._status.update(text)
            return
        now, kind = self._clock(), re.sub(r"[\d.]+", "#", text)
        if kind == self._kind and now < self._next_line:
            return
        self._kind = kind
        self._next_line = now + _LINE_SECONDS
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)
