"""Says which extra to install where an import fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive.cli.errors import fail

if TYPE_CHECKING:
    from types import TracebackType


class needs:  # noqa: N801  reads as a statement: `with needs("learn"): import …`
    """Turn a missing package into one line that names the extra."""

    def __init__(self, extra: str) -> None:
        self._extra = extra

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if isinstance(error, ModuleNotFoundError):
            fail(f"{error.name} is not installed: install adaptive-speculator with the extra {self._extra}")
