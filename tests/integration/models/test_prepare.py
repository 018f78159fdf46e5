"""The real model from its installed package: converted weights are the ones the catalogue names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from adaptive.models import CATALOGUE, convert, prepare
from adaptive.models.manifest import WEIGHTS_NAME, hash_file

if TYPE_CHECKING:
    from pathlib import Path


def test_smollm2_is_converted_to_the_catalogue_weights(tmp_path: Path) -> None:
    """Weights, configs, tokenizer and chat template are there; a second call converts nothing."""
    converted: list[Path] = []

    def counting(source: Path, directory: Path) -> dict[str, str]:
        converted.append(source)
        return convert.convert_gguf(source, directory)

    directory = prepare("smollm2-135m", tmp_path, converter=counting)
    assert prepare("smollm2-135m", tmp_path, converter=counting) == directory
    assert len(converted) == 1
    assert hash_file(directory / WEIGHTS_NAME) == CATALOGUE["smollm2-135m"].target_sha256
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config
    tokenizer: dict[str, Any] = json.loads((directory / "tokenizer_config.json").read_text())
    assert tokenizer["eos_token"] == "<|im_end|>"
    assert tokenizer["model_max_length"] == config["max_position_embeddings"]
    assert "<|im_start|>" in (directory / "chat_template.jinja").read_text()
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 2
    assert (directory / "tokenizer.json").stat().st_size > 1_000_000
