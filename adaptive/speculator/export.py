"""Turbo with a tenant's adapter merged in, as a checkpoint that stock vLLM serves."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, Any, Final

from safetensors.torch import load_file

from adaptive.speculator.adapter import merge
from adaptive.speculator.checkpoint import WEIGHTS, save_turbo
from adaptive.speculator.config import CheckpointError, SpeculatorConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

SPECULATORS_VERSION: Final = "0.2.0"
"""Of the speculators checkpoint format that is written."""


class ExportFormat(enum.StrEnum):
    """How the checkpoint describes itself; the weights are the same."""

    EAGLE3 = "eagle3"
    """As turbo's: `vllm serve TARGET --speculative-config '{"method": "eagle3", "model": DIRECTORY, …}'`."""
    SPECULATORS = "speculators"
    """The speculators format, which also names target and lookahead: `vllm serve DIRECTORY` is enough."""


@dataclasses.dataclass(frozen=True)
class Verifier:
    """The target that the exported drafter was made for."""

    name_or_path: str
    architectures: list[str]


def export_merged(
    directory: Path,
    turbo: Path,
    tensors: Mapping[str, Tensor],
    *,
    weight: float,
    form: ExportFormat,
    verifier: Verifier,
    lookahead: int,
) -> str:
    """Write a checkpoint of turbo with an adapter merged in; floating tensors in bfloat16, as turbo's are.

    Args:
        directory: Made where missing; must hold nothing.
        turbo: Directory of the turbo that the adapter belongs to.
        tensors: Of the adapter, checked.
        weight: On its delta, 0 to 1.
        form: How the checkpoint describes itself.
        verifier: Named in the speculators format.
        lookahead: Draft tokens per verify step that the speculators format proposes.

    Returns:
        sha256 (hex) of its model.safetensors.

    Raises:
        CheckpointError: the directory holds something already, or turbo cannot be read.
    """
    if directory.exists() and any(directory.iterdir()):
        raise CheckpointError(f"{directory} is not empty; name an empty or new directory")
    config = SpeculatorConfig.from_directory(turbo)
    state = merge(load_file(turbo / WEIGHTS), tensors, weight)
    if form is ExportFormat.SPECULATORS:
        state = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in state.items()}
    sha256 = save_turbo(directory, config, state)
    if form is ExportFormat.SPECULATORS:
        described = speculators_config(config, verifier, lookahead)
        (directory / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    return sha256


def speculators_config(config: SpeculatorConfig, verifier: Verifier, lookahead: int) -> dict[str, Any]:
    """config.json of an EAGLE-3 head in the speculators format."""
    above = ("architectures", "eagle_aux_hidden_state_layer_ids", "draft_vocab_size", "target_hidden_size")
    layer = {name: value for name, value in config.to_checkpoint_config().items() if name not in above}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": lookahead,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": dataclasses.asdict(verifier),
        },
    }
