"""Sampling parameters that vLLM does not combine with speculation, served without drafts.

vLLM's V1 rejection sampler applies `min_p` and `logit_bias` to no draft row, so with a speculative config
vLLM leaves out their logits processors and refuses such requests. A request that never has drafts has one
row only, the one that the ordinary sampler fills: with the processors installed it is sampled as without
speculation, beside requests of the same batch that do speculate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

_PIN_MEMORY: Final = False


def target_processors(vllm_config: VllmConfig, device: torch.device) -> LogitsProcessors:
    """Every processor that vLLM installs when it does not speculate."""
    return LogitsProcessors(
        processor(vllm_config, device, _PIN_MEMORY) for processor in BUILTIN_LOGITS_PROCESSORS
    )


def accept_undrafted(input_processor: Any) -> None:
    """Let a front end's input processor take what vLLM refuses only because the engine speculates.

    Only for front ends of an engine with our runner and scheduler: they keep these requests free of drafts.
    """
    input_processor.speculative_config = None
