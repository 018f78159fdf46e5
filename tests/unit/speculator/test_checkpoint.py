"""Turbo checkpoints and the target."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from adaptive.speculator.checkpoint import fingerprint, load_turbo, save_turbo
from adaptive.speculator.config import CheckpointError, SpeculatorConfig
from adaptive.speculator.head import Eagle3Head
from adaptive.speculator.target import compute_features, embedding_table, load_target, output_rows

if TYPE_CHECKING:
    from pathlib import Path


def test_turbo_round_trip(tmp_path: Path, head: Eagle3Head) -> None:
    """A saved turbo loads with the same bfloat16 weights, vocabulary and configuration."""
    sha = save_turbo(tmp_path, head.config, head.state_dict())
    loaded = load_turbo(tmp_path, head.embedding)
    assert loaded.config == head.config
    assert sha == fingerprint(tmp_path)
    for name, tensor in head.state_dict().items():
        expected = tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        assert torch.equal(loaded.state_dict()[name], expected)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_checkpoint_faults_are_named(tmp_path: Path, head: Eagle3Head) -> None:
    """A missing directory, file or field, a cut file and a config of another shape are each named."""
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_turbo(tmp_path, head.embedding)
    save_turbo(tmp_path, head.config, head.state_dict())
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    good, data = config.read_text(), weights.read_bytes()
    config.write_text(json.dumps({**json.loads(good), "intermediate_size": 8}))
    with pytest.raises(CheckpointError, match=r"does not fit config\.json"):
        load_turbo(tmp_path, head.embedding)
    raw = json.loads(good)
    del raw["eagle_aux_hidden_state_layer_ids"]
    config.write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="no field eagle_aux_hidden_state_layer_ids"):
        load_turbo(tmp_path, head.embedding)
    config.write_text(good[:40])
    with pytest.raises(CheckpointError, match="is not JSON"):
        load_turbo(tmp_path, head.embedding)
    config.write_text(good)
    weights.write_bytes(data[:-9])
    with pytest.raises(CheckpointError, match="truncated"):
        load_turbo(tmp_path, head.embedding)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load_turbo(tmp_path, head.embedding)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load_target(tmp_path)


def test_embedding_of_another_target_is_refused(config: SpeculatorConfig) -> None:
    """A head never runs on an embedding of the wrong shape."""
    with pytest.raises(ValueError, match=r"embedding has shape \(24, 8\), the drafter needs \(24, 16\)"):
        Eagle3Head(config, torch.zeros(24, 8))


def test_features_are_the_residual_stream(tmp_path: Path) -> None:
    """Features are hidden_states[i], the last hidden gives the logits, and right padding changes neither."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  # slow import

    shape = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(tmp_path)
    model = load_target(tmp_path)
    ids = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(0))
    features, last = compute_features(model, ids, (1, 3))
    with torch.no_grad():
        out = model(input_ids=ids, output_hidden_states=True)
    torch.testing.assert_close(features, torch.cat([out.hidden_states[1], out.hidden_states[3]], -1))
    torch.testing.assert_close(last @ output_rows(model).T, out.logits)
    padded, _ = compute_features(model, torch.nn.functional.pad(ids, (0, 4)), (1, 3))
    torch.testing.assert_close(padded[:, :9], features)
    assert embedding_table(model).shape == (32, 16)
