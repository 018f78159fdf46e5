"""A tiny made-up target, turbo and tenant whose text an adapter can learn, for tests."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import torch
from safetensors.torch import save_file

from adaptive.contracts import Arm, FeatureReference, SamplingSummary, TraceRecord, VerifyStep
from adaptive.speculator.checkpoint import WEIGHTS, fingerprint, save_turbo
from adaptive.speculator.config import SpeculatorConfig
from adaptive.speculator.head import Eagle3Head
from collectors.safetensors import TensorData

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.store import TensorStore

HIDDEN: Final = 64
VOCABULARY: Final = 256
LAYERS: Final = (0, 1, 2)
TENANT_TOKENS: Final = 12
"""A tenant's text uses this many tokens, so that a low-rank delta can learn it."""
BEGAN: Final = time.time() - 3600
"""Unix seconds; requests are served one a second from then on."""


@dataclass(frozen=True, eq=False)
class TinyModels:
    """Directories of a target and a turbo, and what they compute."""

    target: Path
    turbo: Path
    embedding: torch.Tensor
    projection: torch.Tensor
    target_sha256: str
    turbo_sha256: str


def make_models(root: Path, seed: int = 0) -> TinyModels:
    """Write a random target (its embedding table only) and a random turbo that fits it."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    projection = torch.randn(HIDDEN, HIDDEN * len(LAYERS), generator=generator) / HIDDEN**0.5
    target, turbo = root / "tiny", root / "tiny-turbo"
    target.mkdir(parents=True, exist_ok=True)
    save_file({"model.embed_tokens.weight": embedding}, target / WEIGHTS)
    config = SpeculatorConfig(
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HIDDEN // 2,
        vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_position_embeddings=512,
        target_hidden_size=HIDDEN,
        feature_layers=LAYERS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(config, embedding)
    head.lm_head.weight = torch.nn.Parameter(embedding / HIDDEN**0.5)
    save_turbo(turbo, config, head.state_dict())
    return TinyModels(target, turbo, embedding, projection, fingerprint(target), fingerprint(turbo))


class TinyTenant:
    """Makes traces of one tenant: a cycle through a few tokens with random jumps, as the target writes it.

    Where every token is a jump, the target's distribution is uniform: the text is random.
    """

    def __init__(
        self, models: TinyModels, store: TensorStore, tenant: str, seed: int = 0, jumps: float = 0.1
    ) -> None:
        self._models: Final = models
        self._store: Final = store
        self._tenant: Final = tenant
        self._jumps: Final = jumps
        self._random: Final = random.Random(seed)  # noqa: S311  # reproducible on purpose, nothing secret
        order = list(range(VOCABULARY))
        self._random.shuffle(order)
        self._cycle: Final = order if jumps == 1.0 else order[:TENANT_TOKENS]
        self._count = 0

    def request(
        self, prompt: int = 8, answer: int = 40, segments: int = 1, created_at: float | None = None
    ) -> list[TraceRecord]:
        """All segments of the tenant's next request, served now; its features are in the store."""
        self._count += 1
        request_id = f"{self._tenant}-{self._count}"
        tokens = self._write(prompt + answer)
        features, last_hidden = self._compute(tokens)
        bounds = [prompt + answer * part // segments for part in range(segments + 1)]
        records = []
        for segment in range(segments):
            first, last = bounds[segment], bounds[segment + 1]
            start = 0 if segment == 0 else first - 1
            stop = last - 1  # the newest token has been sampled, not fed to the target yet
            name = f"features/{request_id}/{segment}"
            tensors = {
                "features": as_data(features[start:stop]),
                "last_hidden": as_data(last_hidden[start:stop]),
            }
            stored = self._store.put(self._tenant, name, tensors)
            reference = FeatureReference(
                uri=stored.uri,
                sha256=stored.sha256,
                feature_start=start,
                rows=stop - start,
                dtype="float32",
                bytes=stored.bytes,
                feature_layers=LAYERS,
                hidden_size=HIDDEN,
            )
            records.append(
                TraceRecord(
                    trace_id=f"{request_id}:{segment}",
                    tenant=self._tenant,
                    request_id=request_id,
                    segment=segment,
                    created_at=BEGAN + self._count if created_at is None else created_at,
                    target_sha256=self._models.target_sha256,
                    turbo_sha256=self._models.turbo_sha256,
                    tokenizer_sha256="",
                    prompt_ids=tokens[:prompt] if segment == 0 else [],
                    prompt_length=prompt,
                    output_start=first - prompt,
                    output_ids=tokens[first:last],
                    steps=[VerifyStep(Arm.TURBO, 0, 0, [tokens[first]], 0, [0.0])],
                    sampling=SamplingSummary(),
                    finished=segment == segments - 1,
                    features=reference,
                )
            )
        return records

    def damage(self, record: TraceRecord) -> TraceRecord:
        """The record with a claim check that its features do not answer."""
        assert record.features is not None
        return msgspec.structs.replace(
            record, features=msgspec.structs.replace(record.features, sha256="0" * 64)
        )

    def _write(self, length: int) -> list[int]:
        at = self._random.randrange(len(self._cycle))
        tokens = []
        for _ in range(length):
            jump = self._random.random() < self._jumps
            at = self._random.randrange(len(self._cycle)) if jump else (at + 1) % len(self._cycle)
            tokens.append(self._cycle[at])
        return tokens

    def _compute(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and last hidden states: the latter point to the next token of the cycle."""
        rows = self._models.embedding
        features = rows[tokens] @ self._models.projection
        if self._jumps == 1.0:
            return features, torch.zeros(len(tokens), HIDDEN)
        following = [self._cycle[(self._cycle.index(token) + 1) % TENANT_TOKENS] for token in tokens]
        return features, rows[following] * (8.0 / HIDDEN)


def as_data(tensor: torch.Tensor) -> TensorData:
    """A float32 tensor as the store takes it."""
    return TensorData("F32", tuple(tensor.shape), tensor.contiguous().numpy().tobytes())
