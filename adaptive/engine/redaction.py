"""Keeps requests out of what vLLM logs when its engine fails.

vLLM leaves prompts out of that dump, but prints drafts, stop strings and sampling parameters, which carry a
client's `prediction` too.
"""

from __future__ import annotations

import logging
from typing import Final

LOGGER: Final = "vllm.logging_utils.dump_input"
DUMP: Final = "Dumping scheduler output"
REPLACEMENT: Final = "(left out: it holds text of requests)"


def redact_dumps() -> None:
    """Filter vLLM's logger of failed steps; doing it again changes nothing."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(found, _WithoutRequests) for found in logger.filters):
        logger.addFilter(_WithoutRequests())


class _WithoutRequests(logging.Filter):
    """Lets every record pass, the scheduler's output without its content."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(DUMP):
            record.msg, record.args = f"{DUMP}: {REPLACEMENT}", ()
        return True
