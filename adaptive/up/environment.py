"""Settings as the environment of a child process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adaptive.settings import Settings


def variable(settings: type[Settings], field: str) -> str:
    """Name of the environment variable that sets a field."""
    alias = settings.model_fields[field].validation_alias
    prefix = settings.model_config.get("env_prefix", "")
    return alias if isinstance(alias, str) else f"{prefix}{field}".upper()


def child_environment(settings: Settings) -> dict[str, str]:
    """Environment in which a child process reads the same settings.

    Secrets travel this way too, never on a command line, which every user of the machine can read.
    """
    chosen: Mapping[str, object] = {
        field: getattr(settings, field) for field in settings.model_fields_set | {"home"}
    }
    values = {
        variable(type(settings), field): _text(value) for field, value in chosen.items() if value is not None
    }
    return {**os.environ, **values, "PYTHONUNBUFFERED": "1"}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value.resolve())
    return str(value)
