"""Plugin settings on their way through vLLM's additional_config."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from adaptive.engine.config import CaptureConfig, EngineConfig

CONFIG = EngineConfig(
    slots=4,
    rank=8,
    lookahead=3,
    target_sha256="t",
    turbo_sha256="u",
    tokenizer_sha256="k",
    feature_layers=(2, 15, 27),
    capture=CaptureConfig("sqlite:///log.db", "file:///store", 1 << 20),
)


@pytest.mark.parametrize("config", [CONFIG, msgspec.structs.replace(CONFIG, capture=None)])
def test_round_trip_through_json(config: EngineConfig) -> None:
    """The command line carries it as JSON, lists for tuples included."""
    carried = json.loads(json.dumps(config.to_additional_config()))
    assert EngineConfig.from_additional_config(carried) == config


@pytest.mark.parametrize("additional", [None, {}, {"other": {}}, "text"])
def test_no_section_means_stock_vllm(additional: object) -> None:
    """The plugin is inert where nobody configured it."""
    assert EngineConfig.from_additional_config(additional) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sloots": 4}, "sloots"),
        ({"rank": "high"}, r"\$\.rank"),
        ({"capture": {"log_url": "x"}}, "store_url"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], named: str) -> None:
    """An unknown field, a wrong type and a missing field all say which one."""
    section = CONFIG.to_additional_config()["adaptive"] | change
    with pytest.raises(msgspec.ValidationError, match=named):
        EngineConfig.from_additional_config({"adaptive": section})


def test_a_missing_field_is_named() -> None:
    """Nothing has a silent default but capture."""
    section = CONFIG.to_additional_config()["adaptive"]
    del section["turbo_sha256"]
    with pytest.raises(msgspec.ValidationError, match="turbo_sha256"):
        EngineConfig.from_additional_config({"adaptive": section})
