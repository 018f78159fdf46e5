"""`adaptive serve` and the flags of `vllm serve`."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from adaptive.cli.main import app
from adaptive.endpoint import app as endpoint
from adaptive.endpoint.arguments import OWNED
from adaptive.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, list[str]]]:
    """What the endpoint would be run with."""
    calls: list[tuple[Settings, list[str]]] = []

    def run(settings: Settings, flags: Sequence[str] = ()) -> None:
        calls.append((settings, list(flags)))

    monkeypatch.setattr(endpoint, "run", run)
    return calls


@pytest.mark.parametrize(
    "flags",
    [
        ["--tool-call-parser", "hermes", "--enable-auto-tool-choice"],
        ["--max_num_batched_tokens=512", "-O3"],
        ["--override-generation-config", '{"temperature": 0.2}'],
        ["--", "--seed", "5"],
    ],
)
def test_flags_of_vllm_pass(served: list[tuple[Settings, list[str]]], flags: list[str]) -> None:
    """In any order with ours, with or without a separator; ours are taken out."""
    result = CliRunner().invoke(app, ["serve", "--slots", "5", *flags])
    assert result.exit_code == 0, result.output
    ((settings, passed),) = served
    assert settings.slots == 5
    assert passed == [flag for flag in flags if flag != "--"]


@pytest.fixture(scope="module")
def vllm_flags() -> set[str]:
    """Every flag of `vllm serve`."""
    import transformers  # noqa: F401, PLC0415  vLLM's entry points need it there first
    from transformers import PreTrainedConfig  # noqa: F401, PLC0415
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    with contextlib.redirect_stdout(io.StringIO()):
        parser: Any = make_arg_parser(FlexibleArgumentParser())
    return {flag for action in parser._actions for flag in action.option_strings}


def test_owned_flags_are_vllms(vllm_flags: set[str]) -> None:
    """The list of what cannot be passed names nothing that is gone."""
    assert set(OWNED) <= vllm_flags


def test_settings_that_hide_a_flag_are_known(vllm_flags: set[str]) -> None:
    """All mean the same but `--seed` (ours is the learner's): vLLM's goes after a separator."""
    ours = {"--" + name.replace("_", "-") for name in Settings.model_fields}
    same = {"--dtype", "--host", "--max-model-len", "--max-num-seqs", "--model"}
    assert ours & vllm_flags == same | {"--seed"}
