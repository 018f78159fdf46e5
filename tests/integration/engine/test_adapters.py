"""Bad adapters are refused by name, and the engine goes on as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from adaptive.speculator.adapter import Adapter, AdapterConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.engine.harness import Engine


def wrong_shape(engine: Engine) -> Path:
    """Rank 16 where the engine holds rank 32."""
    return engine.adapter_file("bad", 1, Adapter(AdapterConfig(rank=16), engine.speculator))


def nan_weights(engine: Engine) -> Path:
    """One value that is not a number."""
    adapter = engine.random_adapter(1.0)
    adapter.tensors()["o_proj.B"][3, 5] = torch.nan
    return engine.adapter_file("bad", 1, adapter)


def truncated(engine: Engine) -> Path:
    """Half a file."""
    path = engine.adapter_file("bad", 1, engine.random_adapter(1.0))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def missing(engine: Engine) -> Path:
    """No file."""
    return engine.home / "nowhere.safetensors"


def other_target(engine: Engine) -> Path:
    """Trained for another target."""
    return engine.adapter_file("bad", 1, engine.random_adapter(1.0), target_sha256="other")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (wrong_shape, "rank"),
        (nan_weights, "o_proj.B"),
        (truncated, "truncated"),
        (missing, "nowhere.safetensors"),
        (other_target, "target_sha256"),
    ],
)
def test_bad_adapter_is_refused_and_the_engine_unharmed(
    engine: Engine, make: Callable[[Engine], Path], named: str
) -> None:
    """The refusal names what is wrong; slots and answers stay as they were."""
    prompt = [engine.prompt_ids("Name a fruit.")]
    plan = RequestPlan(tenant="bad", arm=Arm.ADAPTER)
    before, slots = engine.generate(prompt, plan, max_tokens=12), engine.rpc("adapter_info")["slots"]
    state, why = engine.stage("bad", 1, make(engine))
    assert state == "refused"
    assert named in why
    assert named in engine.rpc("commit_adapter", "bad", 1, 1.0)["error"]
    assert engine.rpc("adapter_info")["slots"] == slots
    assert engine.generate(prompt, plan, max_tokens=12) == before
    assert engine.rpc("adapter_weights_finite")
