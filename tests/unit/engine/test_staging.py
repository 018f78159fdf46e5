"""Reading adapter files in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import torch

from adaptive.engine.staging import StagedAdapters
from adaptive.speculator.adapter import Adapter, AdapterConfig, AdapterError
from tests.unit.engine.conftest import RANK, TARGET, TURBO

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.speculator.config import SpeculatorConfig
    from tests.unit.engine.conftest import AdapterFiles


@pytest.fixture
def staged(speculator: SpeculatorConfig) -> StagedAdapters:
    """Nothing staged yet."""
    return StagedAdapters(speculator, RANK, TARGET, TURBO)


def outcome(staged: StagedAdapters, tenant: str, version: int, path: Path) -> tuple[str, str]:
    """Stage a file and wait for the verdict."""
    staged.stage(tenant, version, str(path))
    deadline = time.monotonic() + 10
    while staged.state(tenant, version)[0] == "loading":
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return staged.state(tenant, version)


def test_a_valid_file_is_handed_over_once(staged: StagedAdapters, adapter_file: AdapterFiles) -> None:
    """After `take` the adapter is gone: a commit cannot happen twice by accident."""
    assert staged.state("acme", 1) == ("absent", "")
    assert outcome(staged, "acme", 1, adapter_file()) == ("ready", "")
    tensors = staged.take("acme", 1)
    assert tensors["q_proj.A"].shape == (RANK, 16)
    assert torch.equal(tensors["down_proj.B"], torch.ones(8, RANK))
    with pytest.raises(AdapterError, match="acme@1 is absent"):
        staged.take("acme", 1)


def test_a_newer_version_drops_the_tenants_older_one(
    staged: StagedAdapters, adapter_file: AdapterFiles
) -> None:
    """Only the last staged version of a tenant waits; other tenants keep theirs."""
    outcome(staged, "acme", 1, adapter_file())
    outcome(staged, "other", 1, adapter_file("other"))
    outcome(staged, "acme", 2, adapter_file(version=2))
    assert staged.state("acme", 1)[0] == "absent"
    assert staged.state("acme", 2)[0] == "ready"
    assert staged.state("other", 1)[0] == "ready"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rank": 5}, r"rank is 5, this engine holds rank 3: .*ADAPTIVE_RANK"),
        ({"target": "c" * 64}, "target_sha256 is cccccccccccc, this engine serves aaaaaaaaaaaa"),
        ({"turbo": "c" * 64}, "turbo_sha256 is cccccccccccc, this engine serves bbbbbbbbbbbb"),
        ({"tenant": "other"}, "holds other@1, not acme@1: publish the version again"),
        ({"version": 2}, "holds acme@2, not acme@1: publish the version again"),
    ],
)
def test_a_file_of_something_else_is_refused(
    staged: StagedAdapters, adapter_file: AdapterFiles, arguments: dict[str, object], named: str
) -> None:
    """Rank, target, turbo, tenant and version must be those asked for; the reason says which is not."""
    path = adapter_file(**arguments)  # type: ignore[arg-type]  # one field at a time
    state, why = outcome(staged, "acme", 1, path)
    assert state == "refused"
    with pytest.raises(AdapterError, match=named):
        staged.take("acme", 1)
    assert why


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("o_proj.B", torch.full((8, RANK), torch.nan), r"tensor o_proj\.B holds non-finite"),
        ("gate_proj.A", torch.full((RANK, 8), torch.inf), r"tensor gate_proj\.A holds non-finite"),
        ("up_proj.A", torch.zeros(RANK, 7), r"tensor up_proj\.A has shape \(3, 7\), expected \(3, 8\)"),
        ("k_proj.A", torch.zeros(RANK, 16), r"tensor k_proj\.A is not part of an adapter"),
        ("q_proj.A", None, r"tensor q_proj\.A is missing"),
    ],
)
def test_bad_tensors_are_refused_by_name(
    staged: StagedAdapters,
    adapter_file: AdapterFiles,
    speculator: SpeculatorConfig,
    name: str,
    value: torch.Tensor | None,
    named: str,
) -> None:
    """NaN, infinity, a wrong shape, a stranger and a gap are found before anything reaches the engine."""
    tensors = dict(Adapter(AdapterConfig(rank=RANK), speculator).tensors())
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    state, why = outcome(staged, "acme", 1, adapter_file(tensors=tensors))
    assert state == "refused"
    with pytest.raises(AdapterError, match=named):
        staged.take("acme", 1)
    assert name in why


def test_a_truncated_file_is_refused(staged: StagedAdapters, adapter_file: AdapterFiles) -> None:
    """Half a file is no adapter."""
    path = adapter_file()
    path.write_bytes(path.read_bytes()[:-100])
    assert outcome(staged, "acme", 1, path)[0] == "refused"
    with pytest.raises(AdapterError, match=r"acme-1\.safetensors is truncated"):
        staged.take("acme", 1)


def test_a_missing_file_is_refused(staged: StagedAdapters, tmp_path: Path) -> None:
    """The reason names the path."""
    state, why = outcome(staged, "acme", 1, tmp_path / "gone.safetensors")
    assert state == "refused"
    assert "gone.safetensors does not exist" in why


def test_a_refused_version_can_be_staged_again(staged: StagedAdapters, adapter_file: AdapterFiles) -> None:
    """A file that was repaired is read anew."""
    path = adapter_file()
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    assert outcome(staged, "acme", 1, path)[0] == "refused"
    path.write_bytes(whole)
    assert outcome(staged, "acme", 1, path)[0] == "ready"
