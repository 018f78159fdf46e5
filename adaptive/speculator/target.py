"""The target as a source of features and of its distribution, where captured features are not at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from adaptive.speculator.checkpoint import WEIGHTS
from adaptive.speculator.config import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel


def load_target(
    directory: Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Load a served model directory, frozen; CheckpointError if the directory holds no model."""
    from transformers import AutoModelForCausalLM  # slow to import, and only needed here  # noqa: PLC0415

    if not (directory / WEIGHTS).is_file():
        raise CheckpointError(f"{directory / WEIGHTS} is missing; run `adaptive models prepare` first")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, local_files_only=True
    )
    return model.to(device).requires_grad_(requires_grad=False).eval()


def output_rows(model: PreTrainedModel) -> Tensor:
    """The target's LM head [vocab, hidden]."""
    weight: Tensor = model.get_output_embeddings().weight
    return weight.detach()


def embedding_table(model: PreTrainedModel) -> Tensor:
    """The target's input embedding [vocab, hidden]."""
    weight: Tensor = model.get_input_embeddings().weight
    return weight.detach()


@torch.inference_mode()
def compute_features(
    model: PreTrainedModel, token_ids: Tensor, feature_layers: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Features and last hidden state of every position.

    Args:
        model: the target.
        token_ids: int64 [B, T]; rows may be padded on the right, which changes nothing before the padding.
        feature_layers: indices i of transformers' hidden_states, the residual stream entering layer i.

    Returns:
        features [B, T, L*H] and last_hidden [B, T, H] (after the final norm), in the model's dtype.
    """
    base = model.get_decoder()
    out = base(input_ids=token_ids, output_hidden_states=True, use_cache=False)
    features = torch.cat([out.hidden_states[layer] for layer in feature_layers], dim=-1)
    return features, out.last_hidden_state
