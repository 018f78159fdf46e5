"""Structured logs of every process: structlog, JSON lines on stderr, never any prompt text."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog


class _Stderr:
    """What `sys.stderr` is at the moment; a line that it refuses (a full disk) is lost.

    It must not end the thread that wrote it: what brings traces to the log logs that its disk is full.
    """

    def write(self, text: str) -> int:
        """Write, or lose, a line."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, where it can be."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def configure(role: str, *, json: bool | None = None) -> None:
    """Set up structlog for this process.

    Args:
        role: Name of the process role, bound to every line.
        json: JSON lines if True, human-readable if False; default: JSON unless stderr is a terminal.
    """
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    # Tracebacks without the frames' local variables: those may hold prompts and keys.
    tracebacks = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
    stderr = cast("TextIO", _Stderr())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            tracebacks if as_json else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Found anew for every line: a stderr that was replaced since (and closed, as pytest's is) must not be
        # what module-level loggers keep writing to.
        logger_factory=lambda *_: structlog.PrintLogger(stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(role=role)
