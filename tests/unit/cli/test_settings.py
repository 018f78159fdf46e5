"""Settings by flag, environment and YAML file, and what is said when they are wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from adaptive.cli.options import flag_name, load_settings
from adaptive.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

SECRETS = {"admin_key", "internal_key", "kafka_key_password", "kafka_password"}
ROLES = ("up", "serve", "learn", "control", "demo")


def test_the_version_is_that_of_the_distribution(adaptive: Callable[..., Result]) -> None:
    """`adaptive --version` prints it and nothing else."""
    result = adaptive("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, version("adaptive-speculator"))


@pytest.mark.parametrize("command", ROLES)
def test_every_setting_is_a_flag_of_every_role(adaptive: Callable[..., Result], command: str) -> None:
    """The help lists each field with its description and default; secrets have no flag."""
    result = adaptive(command, "--help")
    assert result.exit_code == 0
    shown = " ".join(result.stdout.replace("│", " ").split())
    for field, info in Settings.model_fields.items():
        assert (flag_name(field) in shown) == (field not in SECRETS), field
        if field not in SECRETS and isinstance(info.default, int) and not isinstance(info.default, bool):
            assert f"Default: {info.default}." in shown


def test_flags_beat_environment_beats_yaml_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented precedence holds field by field."""
    (tmp_path / "adaptive.yaml").write_text("endpoint_port: 1\ncontrol_port: 2\nrank: 3\n")
    monkeypatch.setenv("ADAPTIVE_ENDPOINT_PORT", "4")
    monkeypatch.setenv("ADAPTIVE_CONTROL_PORT", "5")
    settings = load_settings({"endpoint_port": 6, "control_port": None, "tracking_url": "http://mlflow"})
    found = (settings.endpoint_port, settings.control_port, settings.rank, settings.slots)
    assert found == (6, 5, 3, 8)
    assert settings.tracking_url == "http://mlflow"


@pytest.mark.parametrize(
    ("environment", "yaml", "flags", "said"),
    [
        ({}, "", ("--endpoint-port", "99999"), ("endpoint_port = 99999", "--endpoint-port")),
        ({"ADAPTIVE_ENDPOINT_PORT": "x"}, "", (), ("endpoint_port = 'x'", "ADAPTIVE_ENDPOINT_PORT")),
        ({}, "rank: 0\n", (), ("rank = 0", "adaptive.yaml")),
        ({}, "lerners: 2\n", (), ("unknown setting 'lerners'", "adaptive.yaml")),
        ({}, "a: [\n", (), ("adaptive.yaml is not YAML",)),
        ({}, "", ("--lookahead", "9"), ("lookahead (9) exceeds engine_lookahead (8)",)),
        ({"MLFLOW_TRACKING_URI": "http://x", "ADAPTIVE_SLOTS": "1"}, "", (), ("slots = '1'", "--slots")),
    ],
)
def test_a_wrong_setting_is_one_clear_line(
    adaptive: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    yaml: str,
    flags: tuple[str, ...],
    said: tuple[str, ...],
) -> None:
    """Exit code 2; the line names the field, its value and where to set it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if yaml:
        (tmp_path / "adaptive.yaml").write_text(yaml)
    result = adaptive("control", *flags)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in said:
        assert part in result.stderr


def test_a_wrong_secret_is_not_printed(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """The line about a secret names the field and not the value."""
    (tmp_path / "adaptive.yaml").write_text("admin_key: [hunter2]\n")
    result = adaptive("control")
    assert result.exit_code == 2
    assert "admin_key:" in result.stderr
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("learn", "--model", "/nowhere/model"), "/nowhere/model"),
        (("serve", "--model", "/nowhere/model"), "/nowhere/model"),
    ],
)
def test_a_role_that_cannot_start_says_why(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """A missing model ends the command with exit code 1 and a line that names it."""
    command = [sys.executable, "-m", "adaptive.cli", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert said in lines[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [("--log-url", "ftp://x", "log_url"), ("--database-url", "nonsense", "ADAPTIVE_DATABASE_URL")],
)
def test_a_controller_that_cannot_start_says_why(
    adaptive: Callable[..., Result], flag: str, value: str, said: str
) -> None:
    """An unusable log or database ends the command with exit code 1 and a line that names it."""
    result = adaptive("control", flag, value)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert said in result.stderr.splitlines()[-1]


def test_help_loads_no_heavy_package() -> None:
    """`adaptive --help` imports neither torch nor vllm, ray, mlflow, fastapi or transformers."""
    code = (
        "import sys, adaptive.cli.main\n"
        "heavy = {'torch', 'vllm', 'ray', 'mlflow', 'fastapi', 'transformers', 'sqlalchemy'}\n"
        "sys.exit(', '.join(heavy & sys.modules.keys()) or 0)"
    )
    result: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
