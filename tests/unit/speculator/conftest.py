"""A tiny random drafter and traced sequences, float64 so that comparisons can be tight."""

from __future__ import annotations

import pytest
import torch

from adaptive.speculator.adapter import Adapter, AdapterConfig
from adaptive.speculator.config import SpeculatorConfig
from adaptive.speculator.head import Eagle3Head
from adaptive.speculator.sequences import TracedSequence


@pytest.fixture
def generator() -> torch.Generator:
    """Seeded randomness."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def config() -> SpeculatorConfig:
    """A head of 16 hidden units over a vocabulary of 24, of which 17 can be drafted."""
    return SpeculatorConfig(
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=24,
        draft_vocab_size=17,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=128,
        target_hidden_size=8,
        feature_layers=(1, 2, 3),
    )


@pytest.fixture
def head(config: SpeculatorConfig, generator: torch.Generator) -> Eagle3Head:
    """A random head with a scattered draft vocabulary."""
    head = Eagle3Head(config, torch.randn(24, 16, generator=generator))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    head.set_draft_vocabulary(torch.randperm(24, generator=generator)[:17].sort().values)
    return head.double().requires_grad_(requires_grad=False)


@pytest.fixture
def adapter(config: SpeculatorConfig, generator: torch.Generator) -> Adapter:
    """A random (not fresh) adapter of rank 3."""
    adapter = Adapter(AdapterConfig(rank=3), config, generator)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return adapter.double()


@pytest.fixture
def sequences(generator: torch.Generator) -> list[TracedSequence]:
    """Requests of different lengths; one begins after a prefix-cache hit."""
    made = []
    for length, answer, start in ((14, 5, 0), (9, 2, 0), (20, 12, 4), (11, 1, 0)):
        made.append(
            TracedSequence(
                token_ids=torch.randint(0, 24, (length,), generator=generator),
                answer_start=answer,
                feature_start=start,
                features=torch.randn(length - start, 24, generator=generator, dtype=torch.float64),
                last_hidden=torch.randn(length - start, 8, generator=generator, dtype=torch.float64),
            )
        )
    return made
