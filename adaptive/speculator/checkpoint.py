"""Loading and saving a turbo: an EAGLE-3 checkpoint directory as stock vLLM serves it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from adaptive.speculator.config import CheckpointError, SpeculatorConfig
from adaptive.speculator.head import Eagle3Head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

WEIGHTS = "model.safetensors"


def fingerprint(directory: Path) -> str:
    """sha256 (hex) of the directory's model.safetensors: what identifies a target or a turbo."""
    file = directory / WEIGHTS
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; prepare the model, or correct the path")
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_turbo(
    directory: Path,
    embedding: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Eagle3Head:
    """Load a turbo with the target's embedding [vocab, hidden]; parameters in `dtype`, frozen."""
    config = SpeculatorConfig.from_directory(directory)
    file = directory / WEIGHTS
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; restore the checkpoint")
    try:
        state = load_file(file)
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} is truncated or not a safetensors file ({error}); restore it"
        ) from error
    head = Eagle3Head(config, embedding)
    try:
        head.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"{file} does not fit config.json: {error}") from error
    head = head.to(device=device, dtype=dtype)
    return head.requires_grad_(requires_grad=False).eval()


def save_turbo(directory: Path, config: SpeculatorConfig, state: Mapping[str, Tensor]) -> str:
    """Write config.json and model.safetensors (floating tensors as bfloat16); returns the fingerprint."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor)
        .detach()
        .cpu()
        .contiguous()
        for name, tensor in state.items()
    }
    (directory / "config.json").write_text(json.dumps(config.to_checkpoint_config(), indent=2) + "\n")
    save_file(tensors, directory / WEIGHTS, {"format": "pt"})
    return fingerprint(directory)
