"""Logs of every process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import structlog

from adaptive import log

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def answer(prompt: str) -> None:
    """Fail with a customer's text in a local variable."""
    raise ValueError(f"a prompt of {len(prompt)} characters is too long")


@pytest.mark.parametrize("as_json", [True, False])
def test_tracebacks_show_no_local_variables(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    """A logged exception names its frames and message, and nothing that the frames held."""
    log.configure("test", json=as_json)
    logger = structlog.get_logger("tests")
    prompt = "the customer's words"
    try:
        answer(prompt)
    except ValueError:
        logger.exception("request failed")
    written = capsys.readouterr().err
    assert "ValueError" in written
    assert "too long" in written
    assert "customer's words" not in written
    if as_json:
        assert json.loads(written)["role"] == "test"
