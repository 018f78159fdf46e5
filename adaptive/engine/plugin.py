"""Entry point of `vllm.general_plugins`: runs in every vLLM process, and may run more than once."""

from __future__ import annotations


def register() -> None:
    """Register the draft class, correct the CPU sampling kernel, keep requests out of vLLM's crash dumps.

    The worker checks the other symbols.
    """
    from vllm import ModelRegistry  # noqa: PLC0415  the plugin must cost nothing outside vLLM

    from adaptive.engine import compatibility, redaction  # noqa: PLC0415

    for architecture in ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"):
        ModelRegistry.register_model(architecture, "adaptive.engine.draft:AdaptiveEagle3LlamaForCausalLM")
    compatibility.correct_cpu_sampling()
    compatibility.tolerate_foreign_modules()
    redaction.redact_dumps()
