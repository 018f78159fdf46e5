"""The engines that benchmarks compare: stock vLLM without speculation, and the plugin as it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaptive.engine.config import EngineConfig
from adaptive.models import prepare
from adaptive.settings import Settings
from adaptive.speculator.config import SpeculatorConfig
from tests.bench import result
from tests.bench.engine_process import EngineProcess

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.engine.config import CaptureConfig

TURBO = result.ROOT / "deploy" / "turbo" / "smollm2-135m"


def target() -> Path:
    """The demo target, prepared once."""
    return prepare("smollm2-135m", result.ROOT / ".adaptive")


def _common(max_num_seqs: int) -> dict[str, Any]:
    return {
        "model": str(target()),
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 2048,
        "max_num_seqs": max_num_seqs,
        "kv_cache_memory_bytes": 2 << 30,
        "disable_log_stats": False,
        "seed": 0,
    }


def stock(max_num_seqs: int) -> EngineProcess:
    """Vanilla vLLM without speculation."""
    return EngineProcess(plugin=False, **_common(max_num_seqs))


def adaptive(max_num_seqs: int, capture: CaptureConfig | None = None) -> EngineProcess:
    """The plugin with the service's defaults; capture is off without `capture`."""
    settings = Settings()
    config = EngineConfig(
        slots=settings.slots,
        rank=settings.rank,
        lookahead=settings.lookahead,
        target_sha256="target",
        turbo_sha256="turbo",
        tokenizer_sha256="tokenizer",
        feature_layers=SpeculatorConfig.from_directory(TURBO).feature_layers,
        confidence_stop=settings.confidence_stop,
        load_floor=settings.load_floor,
        ngram=settings.ngram,
        capture=capture,
    )
    return EngineProcess(
        plugin=True,
        **_common(max_num_seqs),
        speculative_config={
            "method": "eagle3",
            "model": str(TURBO),
            "num_speculative_tokens": settings.engine_lookahead,
        },
        worker_cls="adaptive.engine.worker.AdaptiveCPUWorker",
        scheduler_cls="adaptive.engine.scheduler.AdaptiveScheduler",
        additional_config=config.to_additional_config(),
    )
