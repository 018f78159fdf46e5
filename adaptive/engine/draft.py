"""The draft model: stock EAGLE-3 plus resident adapters on its last layer.

Registered under the stock architecture names, so that turbo stays a checkpoint that stock vLLM loads. Without
`additional_config["adaptive"]` it is exactly the stock class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from adaptive.engine.adapters import AdaptedLinear, AdapterBuffers
from adaptive.engine.config import EngineConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.config import VllmConfig


class AdaptiveEagle3LlamaForCausalLM(Eagle3LlamaForCausalLM):
    """EAGLE-3 drafter whose q, o and MLP projections take a per-request low-rank delta."""

    adapters: AdapterBuffers | None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        engine_config = EngineConfig.from_additional_config(vllm_config.additional_config)
        if engine_config is None:
            self.adapters = None
            return
        config = self.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        query = config.num_attention_heads * head_dim
        first_layer_only = config.num_hidden_layers == 1
        shapes = {
            "q_proj": (config.hidden_size * (2 if first_layer_only else 1), query),
            "o_proj": (query, config.hidden_size),
            "gate_proj": (config.hidden_size, config.intermediate_size),
            "up_proj": (config.hidden_size, config.intermediate_size),
            "down_proj": (config.intermediate_size, config.hidden_size),
        }
        slots, rank = engine_config.slots, engine_config.rank
        if vllm_config.use_v2_model_runner:
            from adaptive.engine.v2.buffers import GraphAdapterBuffers  # noqa: PLC0415  needs Triton

            self.adapters = GraphAdapterBuffers(
                shapes,
                slots,
                rank,
                vllm_config.model_config.dtype,
                vllm_config.scheduler_config.max_num_batched_tokens,
            )
        else:
            # A row's products are tiny: on the CPU float32 takes half the time of bfloat16.
            self.adapters = AdapterBuffers(shapes, slots, rank, torch.float32)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load turbo, then put the adapted linears in place (the loader knows the stock names only)."""
        super().load_weights(weights)
        if self.adapters is None:
            return
        layer = self.model.layers[-1]
        attention, mlp = layer.self_attn, layer.mlp
        intermediate = self.adapters.shapes["gate_proj"][1]
        attention.qkv_proj = AdaptedLinear(attention.qkv_proj, self.adapters, [("q_proj", 0)])
        attention.o_proj = AdaptedLinear(attention.o_proj, self.adapters, [("o_proj", 0)])
        mlp.gate_up_proj = AdaptedLinear(
            mlp.gate_up_proj,
            self.adapters,
            [("gate_proj", 0), ("up_proj", intermediate)],
        )
        mlp.down_proj = AdaptedLinear(mlp.down_proj, self.adapters, [("down_proj", 0)])

    def draft_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits over the draft vocabulary, [rows, draft_vocab], without the scatter to the target's."""
        return self.logits_processor(self.lm_head, hidden_states)

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Map draft vocabulary ids to target ids (d2t holds the differences)."""
        if self.draft_id_to_target_id is None:
            return draft_ids
        return draft_ids + self.draft_id_to_target_id[draft_ids]
