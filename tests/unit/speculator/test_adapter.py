"""Adapters: file format, refusals, merge."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from adaptive.speculator.adapter import (
    Adapter,
    AdapterConfig,
    AdapterError,
    AdapterMetadata,
    load_adapter,
    merge,
    save_adapter,
)
from adaptive.speculator.head import Eagle3Head
from adaptive.speculator.sequences import TracedSequence, collate
from adaptive.speculator.unroll import unroll

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.speculator.config import SpeculatorConfig

METADATA = AdapterMetadata("acme", 3, 3, "a" * 64, "b" * 64, "2026-01-01T00:00:00Z")


@pytest.fixture
def file(tmp_path: Path, adapter: Adapter) -> Path:
    """A valid adapter file."""
    path = tmp_path / "adapter.safetensors"
    save_adapter(path, adapter.float().tensors(), METADATA)
    return path


def rewrite(
    path: Path,
    adapter: Adapter,
    strings: dict[str, str] | None = None,
    tensors: dict[str, torch.Tensor | None] | None = None,
) -> None:
    """Write a file with some tensors replaced (None: left out) and metadata changed."""
    merged = {
        **adapter.float().tensors(),
        **{name.replace("__", "."): value for name, value in (tensors or {}).items()},
    }
    texts = {name: str(value) for name, value in dataclasses.asdict(METADATA).items()} | {
        "format": "adaptive-adapter-1"
    }
    texts = {name: text for name, text in (texts | (strings or {})).items() if text}
    save_file({name: value for name, value in merged.items() if value is not None}, path, texts)


def test_file_round_trip(file: Path, adapter: Adapter, config: SpeculatorConfig) -> None:
    """What is saved is loaded, with its metadata, and no partial file stays."""
    tensors, metadata = load_adapter(file, config, target_sha256="a" * 64, turbo_sha256="b" * 64)
    assert metadata == METADATA
    assert sorted(tensors) == sorted(AdapterConfig(3).shapes(config))
    assert all(torch.equal(tensors[name], value) for name, value in adapter.float().tensors().items())
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    fresh = Adapter(AdapterConfig(3), config)
    fresh.load_tensors(tensors)
    assert torch.equal(fresh.tensors()["o_proj.B"], tensors["o_proj.B"])


@pytest.mark.parametrize("keep", [0, 7, 100, -5])
def test_truncated_file_is_refused(file: Path, config: SpeculatorConfig, keep: int) -> None:
    """A cut file is refused with its name."""
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(AdapterError, match=r"adapter\.safetensors is truncated or not a safetensors file"):
        load_adapter(file, config)


def test_missing_file_is_refused(tmp_path: Path, config: SpeculatorConfig) -> None:
    """An absent file is named."""
    with pytest.raises(AdapterError, match="does not exist"):
        load_adapter(tmp_path / "nothing.safetensors", config)


def test_wrong_tensors_are_refused(file: Path, adapter: Adapter, config: SpeculatorConfig) -> None:
    """Missing, extra, misshapen, integer and non-finite tensors are each named."""
    bad = adapter.float().tensors()["up_proj.A"].clone()
    bad[0, 0] = float("nan")
    cases: list[tuple[dict[str, torch.Tensor | None], str]] = [
        ({"q_proj__A": None}, r"tensor q_proj\.A is missing"),
        ({"k_proj__A": torch.zeros(3, 32)}, r"tensor k_proj\.A is not part of an adapter"),
        (
            {"down_proj__B": torch.zeros(16, 4)},
            r"tensor down_proj\.B has shape \(16, 4\), expected \(16, 3\)",
        ),
        ({"up_proj__A": bad}, r"tensor up_proj\.A holds non-finite values"),
        ({"up_proj__A": torch.zeros(3, 16, dtype=torch.int32)}, r"tensor up_proj\.A holds non-finite values"),
    ]
    for tensors, message in cases:
        rewrite(file, adapter, tensors=tensors)
        with pytest.raises(AdapterError, match=message):
            load_adapter(file, config)


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        ({"format": "pt"}, "format is 'pt'"),
        ({"tenant": ""}, "metadata field tenant is missing"),
        ({"rank": "many"}, "metadata field rank is 'many'"),
        ({"rank": "0"}, "metadata field rank is '0'"),
        ({"target_sha256": "c" * 64}, "target_sha256 is cccccccccccc, this engine serves aaaaaaaaaaaa"),
        ({"turbo_sha256": "d" * 64}, "turbo_sha256 is dddddddddddd, this engine serves bbbbbbbbbbbb"),
    ],
)
def test_wrong_metadata_is_refused(
    file: Path, adapter: Adapter, config: SpeculatorConfig, strings: dict[str, str], message: str
) -> None:
    """A file for another format, target or turbo is refused, naming the field."""
    rewrite(file, adapter, strings)
    with pytest.raises(AdapterError, match=message):
        load_adapter(file, config, target_sha256="a" * 64, turbo_sha256="b" * 64)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_merged_head_equals_head_with_adapter(
    head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence], weight: float
) -> None:
    """Exporting an adapter into turbo's weights changes no draft."""
    merged = Eagle3Head(head.config, head.embedding).double()
    merged.load_state_dict(merge(head.state_dict(), adapter.tensors(), weight))
    batch = collate(sequences, [[0, 1, 2, 3]])
    pairs = zip(unroll(head, adapter, batch, 3, weight), unroll(merged, None, batch, 3), strict=True)
    for (with_adapter, reachable), (plain, _) in pairs:
        torch.testing.assert_close(with_adapter[reachable], plain[reachable], rtol=1e-5, atol=1e-5)
