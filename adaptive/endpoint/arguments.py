"""From settings to the arguments of vLLM's own server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from adaptive.engine.config import CaptureConfig, EngineConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.endpoint.identity import Identity
    from adaptive.settings import Settings

OWNED: Final = (
    "--api-server-count",
    "-asc",
    "--worker-cls",
    "--scheduler-cls",
    "--additional-config",
    "--api-key",
    "--config",
    "--model",
    "--tokenizer",
    "--served-model-name",
    "--speculative-config",
    "-sc",
    "--host",
    "--port",
    "--data-parallel-size",
    "-dp",
    "--headless",
    "--kv-transfer-config",
    "--enable-log-outputs",
)
"""vLLM flags that the endpoint sets or that would break it (a config file may hold any of them)."""

DRAIN_SECONDS: Final = 25
"""How long requests in flight may go on after SIGTERM; the supervisor kills after 30."""


class ArgumentError(ValueError):
    """A vLLM flag cannot be used here; the message says why."""


def engine_config(settings: Settings, identity: Identity) -> EngineConfig:
    """What the engine process is told."""
    capture = CaptureConfig(
        settings.resolved_log_url,
        settings.resolved_store_url,
        settings.capture_queue_bytes,
        settings.capture_bytes_per_second,
        settings.feature_object_bytes,
        settings.feature_linger_seconds,
    )
    return EngineConfig(
        slots=settings.slots,
        rank=settings.rank,
        lookahead=settings.lookahead,
        target_sha256=identity.target_sha256,
        turbo_sha256=identity.turbo_sha256,
        tokenizer_sha256=identity.tokenizer_sha256,
        feature_layers=identity.speculator.feature_layers,
        capture=capture if settings.capture else None,
        slot_residence_seconds=settings.slot_residence_seconds,
        confidence_stop=settings.confidence_stop,
        load_floor=settings.load_floor,
        ngram=settings.ngram,
    )


def vllm_arguments(settings: Settings, identity: Identity, extra: Sequence[str]) -> list[str]:
    """Command line of vLLM's server; `extra` comes last, so an operator's flags win.

    Raises:
        ArgumentError: `extra` holds a flag that the endpoint owns, or starts with a model.
    """
    if extra and not extra[0].startswith("-"):
        raise ArgumentError(f"{extra[0]!r} is no flag: name the model with --model")
    for argument in extra:
        flag = _owned(argument)
        if flag is not None:
            raise ArgumentError(
                f"{flag} cannot be passed: the endpoint sets it from its own settings (see adaptive serve "
                "--help), or could not serve tenants with it (one API server, our classes, per engine)"
            )
    speculative = {
        "method": "eagle3",
        "model": str(identity.turbo),
        "num_speculative_tokens": settings.engine_lookahead,
    }
    return [
        "--model", str(identity.target),
        "--served-model-name", identity.name,
        "--host", settings.host,
        "--port", str(settings.endpoint_port),
        "--dtype", settings.dtype,
        "--max-model-len", str(settings.max_model_len),
        "--max-num-seqs", str(settings.max_num_seqs),
        "--kv-cache-memory-bytes", str(int(settings.kv_cache_gib * (1 << 30))),
        "--enforce-eager",
        "--speculative-config", json.dumps(speculative),
        "--worker-cls", "adaptive.engine.worker.AdaptiveCPUWorker",
        "--scheduler-cls", "adaptive.engine.scheduler.AdaptiveScheduler",
        "--additional-config", json.dumps(engine_config(settings, identity).to_additional_config()),
        "--per-request-spec-decode-metrics", "summary" if settings.acceptance_details else "none",
        "--stream-interval", str(settings.stream_coalesce),
        "--shutdown-timeout", str(DRAIN_SECONDS),
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
        *extra,
    ]  # fmt: skip


def _owned(argument: str) -> str | None:
    """The owned flag an argument stands for: vLLM takes underscores, abbreviations and dotted keys too."""
    flag = argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
    if len(flag) <= 2:  # "--", or too short to be clear to vLLM
        return None
    return next((owned for owned in OWNED if owned.startswith(flag)), None)
