"""Structured logs of every process: structlog, JSON lines on stderr, never any prompt text."""

from __future__ import annotations

import logging
import sys

import structlog


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
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(role=role)
