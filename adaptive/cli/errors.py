"""Ends a command with one clear line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import typer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

FAILED: Final = 1
WRONG_USE: Final = 2


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print an error on stderr and exit."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


class clean_errors:  # noqa: N801  reads as a statement: `with clean_errors(ModelError): …`
    """Turn exceptions whose message says all a user needs into one line and exit code 1."""

    def __init__(self, *types: type[Exception]) -> None:
        self._types = types

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, self._types):
            fail(str(error))
