"""Logs of every process."""

from __future__ import annotations

import errno
import io
import json
import sys
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


class FullDisk(io.StringIO):
    """Where nothing more can be written."""

    def write(self, _: str) -> int:
        """Refuse."""
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        """Refuse."""
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_full_disk_under_the_logs_ends_no_thread(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """A line that cannot be written is lost, and the next one is written where there is space again."""
    log.configure("test", json=as_json)
    logger = structlog.get_logger("tests")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", FullDisk())
        logger.warning("lost")
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    logger.warning("kept")
    assert "kept" in stderr.getvalue()
    assert "lost" not in stderr.getvalue()


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


def test_json_lines_carry_role_level_time_and_context(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object per line, what is bound to the context included; debug lines are left out."""
    log.configure("endpoint", json=True)
    logger = structlog.get_logger("tests")
    with structlog.contextvars.bound_contextvars(tenant="acme"):
        logger.debug("not this")
        logger.info("served", status=200)
    logger.warning("alone")
    served, alone = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    timestamp = served.pop("timestamp")
    assert timestamp.endswith("Z")
    assert served == {"event": "served", "level": "info", "role": "endpoint", "status": 200, "tenant": "acme"}
    assert "tenant" not in alone


def test_json_is_the_default_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """Stderr that is no terminal gets JSON."""
    log.configure("endpoint")
    structlog.get_logger("tests").info("started")
    assert json.loads(capsys.readouterr().err)["event"] == "started"


def test_people_get_readable_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Not JSON, and the fields are there."""
    log.configure("endpoint", json=False)
    structlog.get_logger("tests").info("started", port=8000)
    written = capsys.readouterr().err
    assert not written.startswith("{")
    assert "started" in written
    assert "8000" in written


def test_a_logger_outlives_the_stderr_it_first_wrote_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module-level logger used once writes to the stderr of the moment, not to one closed since."""
    logger = structlog.get_logger("tests")
    first = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", first)
        log.configure("endpoint", json=True)
        logger.info("early")
    first.close()
    logger.info("late")
    assert json.loads(capsys.readouterr().err)["event"] == "late"
