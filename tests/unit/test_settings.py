"""The one settings schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adaptive.settings import Settings


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory and no setting in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ADAPTIVE_") or name == "MLFLOW_TRACKING_URI":
            monkeypatch.delenv(name)


def test_flags_win_over_environment_over_file_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source loses to the one before it, field by field."""
    assert Settings().endpoint_port == 8000
    Path("adaptive.yaml").write_text("endpoint_port: 8001\ncontrol_port: 8101\nslots: 5\n")
    monkeypatch.setenv("ADAPTIVE_CONTROL_PORT", "8102")
    monkeypatch.setenv("ADAPTIVE_SLOTS", "6")
    settings = Settings(slots=7)
    assert (settings.endpoint_port, settings.control_port, settings.slots) == (8001, 8102, 7)
    assert settings.rank == 32


@pytest.mark.parametrize("wrong", [{"sloots": 4}, {"log": "x"}])
def test_unknown_flags_are_refused_by_name(wrong: dict[str, Any]) -> None:
    """A misspelt setting never silently keeps its default."""
    (name,) = wrong
    with pytest.raises(ValidationError, match=rf"{name}\n  Extra inputs are not permitted"):
        Settings(**wrong)


def test_unknown_keys_of_the_file_are_refused_by_name() -> None:
    """The same for adaptive.yaml."""
    Path("adaptive.yaml").write_text("endpoint_prot: 8001\n")
    with pytest.raises(ValidationError, match=r"endpoint_prot\n  Extra inputs are not permitted"):
        Settings()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint_port", 0),
        ("dtype", "int8"),
        ("slots", 1),
        ("rank", 0),
        ("feature_share", 1.5),
        ("features", "guessed"),
        ("kv_cache_gib", 0),
        ("off_share", -0.1),
        ("capture_queue_bytes", 10),
        ("lookahead", "many"),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: object) -> None:
    """The first line of the error is the field."""
    with pytest.raises(ValidationError, match=rf"(?m)^{field}$"):
        Settings(**{field: value})  # type: ignore[arg-type]  # wrong on purpose


def test_a_wrong_environment_variable_names_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text from the environment is checked like everything else."""
    monkeypatch.setenv("ADAPTIVE_MAX_NUM_SEQS", "lots")
    with pytest.raises(ValidationError, match=r"(?m)^max_num_seqs$"):
        Settings()


def test_the_arms_cap_must_fit_the_engine() -> None:
    """The error names both settings and both remedies."""
    with pytest.raises(ValidationError, match=r"lookahead \(9\) exceeds engine_lookahead \(8\).*ADAPTIVE_"):
        Settings(lookahead=9)
    assert Settings(lookahead=9, engine_lookahead=12).lookahead == 9


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_URI", "ADAPTIVE_TRACKING_URL"])
def test_the_tracking_url_has_mlflows_own_variable_too(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """MLFLOW_TRACKING_URI is what MLflow's users set; the file and flags use the field's name."""
    monkeypatch.setenv(name, "http://mlflow:5000")
    assert Settings().resolved_tracking_url == "http://mlflow:5000"
    assert Settings(tracking_url="http://other").resolved_tracking_url == "http://other"


def test_the_tracking_url_can_be_set_in_the_file() -> None:
    """Like every other field."""
    Path("adaptive.yaml").write_text("tracking_url: http://mlflow:5000\n")
    assert Settings().resolved_tracking_url == "http://mlflow:5000"


def test_urls_default_to_home(tmp_path: Path) -> None:
    """One directory holds log, store, database and runs; the URLs are absolute, whatever home is."""
    settings = Settings(home=Path("state"))
    home = f"{tmp_path.resolve()}/state"
    assert settings.resolved_log_url == f"sqlite:///{home}/log.db"
    assert settings.resolved_store_url == f"file://{home}/store"
    assert settings.resolved_database_url == f"sqlite:///{home}/control.db"
    assert settings.resolved_tracking_url == f"sqlite:///{home}/mlflow.db"


def test_embedded_urls_stay_known_where_others_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that must keep to its home finds it whatever the operator has chosen."""
    for name in ("LOG_URL", "STORE_URL", "DATABASE_URL", "TRACKING_URL"):
        monkeypatch.setenv(f"ADAPTIVE_{name}", "http://operator")
    settings = Settings(home=Path("state"))
    home = f"{tmp_path.resolve()}/state"
    assert settings.resolved_log_url == settings.resolved_tracking_url == "http://operator"
    assert settings.default_log_url == f"sqlite:///{home}/log.db"
    assert settings.default_store_url == f"file://{home}/store"
    assert settings.default_database_url == f"sqlite:///{home}/control.db"
    assert settings.default_tracking_url == f"sqlite:///{home}/mlflow.db"


def test_urls_that_are_set_are_kept() -> None:
    """Nothing is derived where the operator has chosen."""
    settings = Settings(
        log_url="kafka://broker:9092", store_url="s3://bucket/prefix", database_url="postgresql://db"
    )
    assert settings.resolved_log_url == "kafka://broker:9092"
    assert settings.resolved_store_url == "s3://bucket/prefix"
    assert settings.resolved_database_url == "postgresql://db"


def test_settings_are_frozen() -> None:
    """No process changes what it was started with."""
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.slots = 3  # type: ignore[misc]  # that it fails is the point


def test_keys_do_not_show() -> None:
    """Settings are printed and logged; their secrets are not."""
    settings = Settings(admin_key="very-secret", internal_key="most-secret")
    assert "secret" not in repr(settings)
    assert "secret" not in settings.model_dump_json()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("HOME", "state", Path("state")),
        ("CAPTURE", "false", False),
        ("KV_CACHE_GIB", "0.5", 0.5),
        ("LEARNERS", "2", 2),
        ("TURBO", "heads/turbo", Path("heads/turbo")),
        ("STORE_URL", "s3://bucket", "s3://bucket"),
    ],
)
def test_the_environment_is_text_that_becomes_typed(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    """Every kind of field has its ADAPTIVE_ variable."""
    monkeypatch.setenv(f"ADAPTIVE_{name}", text)
    assert getattr(Settings(), name.lower()) == value
