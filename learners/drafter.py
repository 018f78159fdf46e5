"""What a learner needs of the served models: the drafter, the target's LM head rows, fingerprints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from safetensors import safe_open

from adaptive.speculator.checkpoint import WEIGHTS, fingerprint, load_turbo
from adaptive.speculator.config import CheckpointError
from adaptive.speculator.target import compute_features, embedding_table, load_target, output_rows

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from adaptive.speculator.head import Eagle3Head

PRECISIONS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_EMBEDDING: Final = "model.embed_tokens.weight"
_LM_HEAD: Final = "lm_head.weight"


@dataclass(frozen=True, eq=False)
class Drafter:
    """Turbo with the target's tables, frozen, in one precision on one device."""

    head: Eagle3Head
    target_rows: Tensor
    """[draft_vocab_size, hidden]: the target's LM head for the draft vocabulary, in draft order."""
    target_directory: Path
    target_name: str
    target_sha256: str
    turbo_sha256: str
    precision: str

    @property
    def source(self) -> str:
        """Names what features must come from to train this drafter."""
        layers = ",".join(str(layer) for layer in self.head.config.feature_layers)
        return f"{self.target_sha256}:{layers}"


def training_device() -> str:
    """Cuda where this process sees a GPU (Ray hides those that an actor did not ask for), else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def faster_precision(device: str = "cpu") -> str:
    """bfloat16 on a GPU and where the CPU multiplies it in hardware, else float32.

    With AVX512-BF16 (Zen 4) matrix products ran 2.3 times as fast as in float32, one thread.
    """
    if device != "cpu":
        return "bfloat16"
    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if capabilities.get("amx_tile") or capabilities.get("avx512_bf16") else "float32"


def load_drafter(target: Path, turbo: Path, precision: str, device: str = "cpu") -> Drafter:
    """Load the drafter of a target.

    Args:
        target: Served model directory.
        turbo: Turbo checkpoint directory.
        precision: bfloat16 or float32.
        device: Where it trains, cpu or cuda.

    Raises:
        CheckpointError: a directory, file or field is missing or does not fit; names it and the remedy.
    """
    embedding, lm_head = _tables(target)
    dtype = PRECISIONS[precision]
    head = load_turbo(turbo, embedding, dtype=dtype, device=device)
    return Drafter(
        head=head,
        target_rows=lm_head[head.draft_token_ids.cpu()].to(device, dtype),
        target_directory=target,
        target_name=target.name,
        target_sha256=fingerprint(target),
        turbo_sha256=fingerprint(turbo),
        precision=precision,
    )


class Recomputer:
    """Runs the target over traced tokens whose features were not captured; loads it when first used."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter: Final = drafter
        self._model: torch.nn.Module | None = None

    def __call__(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Features [T, L*H] and last hidden states [T, H] of one sequence, int64 [T], on the CPU."""
        dtype, device = PRECISIONS[self._drafter.precision], self._drafter.target_rows.device
        if self._model is None:
            self._model = load_target(self._drafter.target_directory, dtype=dtype, device=device)
        layers = self._drafter.head.config.feature_layers
        features, last_hidden = compute_features(self._model, token_ids[None].to(device), layers)
        return features[0].cpu().clone(), last_hidden[0].cpu().clone()


def _tables(target: Path) -> tuple[Tensor, Tensor]:
    """The target's embedding and LM head, each [vocab, hidden]; the model is built only if need be."""
    file = target / WEIGHTS
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; prepare the model, or correct the path")
    with safe_open(file, framework="pt") as tensors:
        names = set(tensors.keys())
        if _EMBEDDING in names:
            embedding = tensors.get_tensor(_EMBEDDING)
            return embedding, tensors.get_tensor(_LM_HEAD) if _LM_HEAD in names else embedding
    model = load_target(target, dtype=torch.bfloat16)
    return embedding_table(model), output_rows(model)
