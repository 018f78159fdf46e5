"""The shape of an EAGLE-3 drafter, read from and written to the checkpoint format that vLLM serves."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURE = "LlamaForCausalLMEagle3"


class CheckpointError(ValueError):
    """A drafter or target directory cannot be used; the message names the file or field and the remedy."""


@dataclasses.dataclass(frozen=True)
class SpeculatorConfig:
    """Shape of a one-layer EAGLE-3 head (arXiv 2503.01840) for one target."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    target_hidden_size: int
    feature_layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}; correct config.json"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise CheckpointError(
                f"draft_vocab_size={self.draft_vocab_size} exceeds vocab_size={self.vocab_size}; "
                f"correct config.json"
            )

    @property
    def feature_size(self) -> int:
        """Width of one position's concatenated features."""
        return self.target_hidden_size * len(self.feature_layers)

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """Read config.json of a drafter checkpoint; CheckpointError names a missing file or field."""
        file = path / "config.json"
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; point at a drafter checkpoint directory")
        try:
            raw: dict[str, Any] = json.loads(file.read_text())
        except ValueError as error:
            raise CheckpointError(f"{file} is not JSON ({error}); restore it from the release") from error
        hidden = raw.get("hidden_size")
        heads = raw.get("num_attention_heads")
        rope = raw.get("rope_parameters") or {}
        if hidden and heads:
            raw.setdefault("head_dim", hidden // heads)
        raw.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
        raw.setdefault("target_hidden_size", hidden)
        raw.setdefault("draft_vocab_size", raw.get("vocab_size"))
        layers = raw.get("eagle_aux_hidden_state_layer_ids") or (raw.get("eagle_config") or {}).get(
            "eagle_aux_hidden_state_layer_ids"
        )
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = layers if field.name == "feature_layers" else raw.get(field.name)
            if value is None:
                name = "eagle_aux_hidden_state_layer_ids" if field.name == "feature_layers" else field.name
                raise CheckpointError(f"{file} has no field {name}; add it or re-export the drafter")
            values[field.name] = value
        values["feature_layers"] = tuple(values["feature_layers"])
        return cls(**values)

    def to_checkpoint_config(self) -> dict[str, Any]:
        """The config.json that stock vLLM reads for method "eagle3"."""
        raw = dataclasses.asdict(self)
        layers = list(raw.pop("feature_layers"))
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "eagle_aux_hidden_state_layer_ids": layers,
            **raw,
        }
