"""What vLLM logs when a step fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING

from vllm import SamplingParams
from vllm.logging_utils.dump_input import dump_engine_exception
from vllm.v1.core.sched.output import NewRequestData

from adaptive.engine.plugin import register
from adaptive.engine.redaction import DUMP, LOGGER, REPLACEMENT

if TYPE_CHECKING:
    import pytest


class Kept(logging.Handler):
    """Keeps what reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def dumped() -> str:
    """What vLLM says about a failed step of a request with a stop string, a prediction and drafts."""
    request = NewRequestData(
        req_id="request-1",
        prompt_token_ids=[101, 102],
        mm_features=[],
        sampling_params=SamplingParams(stop=["canary-stop"], extra_args={"prediction": [40404]}),
        pooling_params=None,
        block_ids=([0],),
        num_computed_tokens=0,
        lora_request=None,
    )
    output = SimpleNamespace(
        scheduled_new_reqs=[request], scheduled_spec_decode_tokens={"request-1": [50505]}
    )
    logger = logging.getLogger(LOGGER)
    kept = Kept()
    logger.addHandler(kept)
    try:
        dump_engine_exception("config", output, None)  # printed, never looked into
    finally:
        logger.removeHandler(kept)
    return "\n".join(kept.lines)


def test_a_failed_step_tells_nothing_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop strings, predictions and drafts, which vLLM alone prints, stay out; the line says so."""
    logger = logging.getLogger(LOGGER)
    monkeypatch.setattr(logger, "filters", [])
    secrets = ("canary-stop", "40404", "50505")
    assert all(secret in dumped() for secret in secrets), "vLLM no longer prints them: remove this"
    register()
    register()
    said = dumped()
    assert not any(secret in said for secret in secrets)
    assert f"{DUMP}: {REPLACEMENT}" in said
    assert len(logger.filters) == 1
