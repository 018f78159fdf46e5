"""`adaptive doctor` finds what is wrong and says what to do."""

from __future__ import annotations

import socket
from importlib import metadata
from typing import TYPE_CHECKING

from adaptive.cli import checks
from adaptive.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from typer.testing import Result


def model_directory(path: Path) -> Path:
    """A directory that looks like a target or a turbo."""
    path.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (path / name).touch()
    return path


def test_a_machine_without_problems_passes(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """Every line says ok and the exit code is 0."""
    directory = model_directory(tmp_path / "model")
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = (one.getsockname()[1], two.getsockname()[1])
    result = adaptive(
        *("doctor", "--model", directory, "--turbo", directory, "--home", tmp_path / "home"),
        *("--endpoint-port", ports[0], "--control-port", ports[1]),
    )
    assert result.exit_code == 0, result.stdout
    assert all(line.startswith("ok ") for line in result.stdout.splitlines())
    assert not (tmp_path / "home").exists()


def test_every_problem_comes_with_a_remedy(
    adaptive: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taken port, a mistyped variable and a missing model are each one line, and the exit code is 1."""
    monkeypatch.setenv("ADAPTIVE_LERNERS", "2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = adaptive("doctor", "--endpoint-port", port, "--home", tmp_path, "--turbo", tmp_path)
    assert result.exit_code == 1
    problems = {line for line in result.stdout.splitlines() if line.startswith("problem")}
    for found, remedy in (
        (f"127.0.0.1:{port}", "--endpoint-port"),
        ("ADAPTIVE_LERNERS", "correct its name"),
        ("smollm2-135m is not prepared", "adaptive models prepare smollm2-135m"),
        (f"{tmp_path} has no config.json", "--turbo"),
    ):
        assert any(found in line and remedy in line for line in problems)


def test_a_damaged_model_is_found(tmp_path: Path) -> None:
    """A prepared model without its manifest is not called right."""
    (tmp_path / "models").mkdir()
    model_directory(tmp_path / "models" / "smollm2-135m")
    check = checks.check_model(Settings(home=tmp_path))
    assert "damaged" in check.found
    assert check.remedy is not None


def test_a_model_that_is_no_directory_lists_the_known_names() -> None:
    """A mistyped catalogue name is answered with the right ones."""
    check = checks.check_model(Settings(model="smollm3"))
    assert check.remedy is not None
    assert "smollm2-135m" in check.remedy


def test_packages_that_are_missing_or_wrong_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package and an excluded version are told apart."""
    real = metadata.version

    def version(name: str) -> str:
        if name == "ray":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "mlflow" else real(name)

    monkeypatch.setattr("adaptive.cli.checks.metadata.version", version)
    found = {check.name: check for check in checks.check_packages()}
    learn = found["packages (learn)"]
    assert "ray is not installed" in learn.found
    assert "mlflow 0.1 is installed, <4,>=3.17 is needed" in learn.found
    assert learn.remedy is not None
    assert found["packages (controller)"].remedy is None


def test_a_home_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    """A path below a file cannot become a directory, whoever asks."""
    file = tmp_path / "file"
    file.touch()
    check = checks.check_home(file / "home")
    assert check.remedy is not None
    assert "--home" in check.remedy


def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little space is a problem, with how much is needed."""
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 1 << 20})())
    check = checks.check_disk(tmp_path / "not" / "there")
    assert check.remedy is not None
    assert "2 GiB" in check.remedy
