"""`adaptive export` against a real controller, store and checkpoint."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from adaptive.contracts import TOPIC_DRAFTER_PUBLISHED, encode
from adaptive.settings import Settings
from adaptive.speculator.adapter import Adapter, AdapterConfig, AdapterMetadata, merge, save_adapter
from adaptive.speculator.config import SpeculatorConfig
from collectors.open import open_transport
from collectors.store import TensorStore
from learners.testing import make_models
from tests.unit.controller.conftest import published

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    from learners.testing import TinyModels


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyModels:
    """A tiny target and turbo that the settings name."""
    made = make_models(tmp_path / "models")
    (made.target / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    monkeypatch.setenv("ADAPTIVE_MODEL", str(made.target))
    monkeypatch.setenv("ADAPTIVE_TURBO", str(made.turbo))
    return made


@pytest.fixture
def adapter(models: TinyModels) -> Adapter:
    """A random adapter of that turbo."""
    torch.manual_seed(0)
    made = Adapter(AdapterConfig(rank=4), SpeculatorConfig.from_directory(models.turbo))
    for name, tensor in made.tensors().items():
        if name.endswith(".B"):
            tensor.normal_(0, 0.1)
    return made


def publish(models: TinyModels, adapter: Adapter, path: Path, turbo_sha256: str) -> None:
    """Store the adapter as version 1 of tenant acme and announce it."""
    settings = Settings()
    metadata = AdapterMetadata("acme", 1, 4, models.target_sha256, turbo_sha256, "2026-01-01T00:00:00Z")
    save_adapter(path, adapter.tensors(), metadata)
    stored = TensorStore(settings.resolved_store_url).put_file("acme", "adapters/1", path)
    message = published(1)
    reference = msgspec.structs.replace(
        message.adapter,
        uri=stored.uri,
        sha256=stored.sha256,
        rank=4,
        target_sha256=models.target_sha256,
        turbo_sha256=turbo_sha256,
    )
    transport = open_transport(settings.resolved_log_url)
    transport.send(
        TOPIC_DRAFTER_PUBLISHED, "acme", encode(msgspec.structs.replace(message, adapter=reference))
    )
    transport.close()


def wait_for_version(adaptive: Callable[..., Result]) -> None:
    """Until the controller knows version 1."""
    deadline = time.monotonic() + 20
    while adaptive("drafters", "show", "acme", "1").exit_code:
        assert time.monotonic() < deadline, "the controller does not know the version"
        time.sleep(0.05)


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize("form", ["eagle3", "speculators"])
def test_a_version_is_merged_into_turbo(
    adaptive: Callable[..., Result], models: TinyModels, adapter: Adapter, tmp_path: Path, form: str
) -> None:
    """The checkpoint holds turbo's weights with the delta added; the speculators format names the target."""
    adaptive("tenants", "create", "acme")
    publish(models, adapter, tmp_path / "adapter.safetensors", models.turbo_sha256)
    wait_for_version(adaptive)
    arguments = ("--tenant", "acme", "--version", "1", "--format", form, "--output", "exported")
    result = adaptive("export", *arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("acme@1 (weight 1) merged into turbo: exported (sha256 ")
    wanted = merge(load_file(models.turbo / "model.safetensors"), adapter.tensors())
    found = load_file(tmp_path / "exported" / "model.safetensors")
    prefix = "layers.0." if form == "speculators" else "midlayer."
    assert found.keys() == {name.replace("midlayer.", prefix) for name in wanted}
    for name, tensor in wanted.items():
        assert torch.equal(found[name.replace("midlayer.", prefix)], tensor)
    described = json.loads((tmp_path / "exported" / "config.json").read_text())
    if form == "speculators":
        verifier = {"name_or_path": str(models.target), "architectures": ["LlamaForCausalLM"]}
        assert described["speculators_config"]["verifier"] == verifier
        assert described["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    else:
        assert described == json.loads((models.turbo / "config.json").read_text())

    again = adaptive("export", *arguments)
    assert again.exit_code == 1
    assert "exported is not empty" in again.stderr


@pytest.mark.usefixtures("controller")
def test_what_cannot_be_exported_is_said_in_one_line(
    adaptive: Callable[..., Result], models: TinyModels, adapter: Adapter, tmp_path: Path
) -> None:
    """No such format, nothing that serves, no such version, an adapter of another turbo."""
    adaptive("tenants", "create", "acme")
    for arguments, said in (
        (("--format", "onnx"), "choose eagle3 or speculators"),
        ((), "turbo serves acme"),
        (("--version", "7"), "7"),
    ):
        result = adaptive("export", "--tenant", "acme", *arguments)
        assert result.exit_code != 0
        assert said in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    publish(models, adapter, tmp_path / "adapter.safetensors", "d" * 64)
    wait_for_version(adaptive)
    result = adaptive("export", "--tenant", "acme", "--version", "1")
    assert result.exit_code == 1
    assert "turbo_sha256" in result.stderr
    assert not (tmp_path / "acme-v1-speculators").exists()
