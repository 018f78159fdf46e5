"""The `adaptive models` command: exit codes and messages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from adaptive.cli.models import app

if TYPE_CHECKING:
    from pathlib import Path


def test_unknown_model_exits_with_its_message(tmp_path: Path) -> None:
    """A known error is one line on stderr and exit code 1, no traceback."""
    result = CliRunner().invoke(app, ["prepare", "nothing", "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.strip() == "error: unknown model 'nothing'; known models: smollm2-135m"


def test_modules_import_without_the_serving_tier() -> None:
    """The base install has no torch, vllm or transformers: importing the package needs none of them."""
    code = (
        "import sys, adaptive.models, adaptive.workloads, adaptive.cli.models; "
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
