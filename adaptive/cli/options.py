"""Settings as flags: made from the settings schema, so that flags, environment and YAML file never differ."""

from __future__ import annotations

import inspect
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
import yaml
from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsError

from adaptive.cli.errors import WRONG_USE, fail
from adaptive.settings import Settings
from adaptive.up.environment import variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic.fields import FieldInfo

YAML_FILE: Final = "adaptive.yaml"
PANEL: Final = f"Settings (also as ADAPTIVE_<NAME> in the environment or in {YAML_FILE})"
ADMIN_FIELDS: Final = ("home", "host", "control_port")
"""What a client of the admin API needs; its key comes from ADAPTIVE_ADMIN_KEY or the home directory."""


def with_settings(*fields: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag per settings field and pass it the resulting `settings`.

    Args:
        fields: Fields that get a flag; none: every field that is not a secret. Secrets have no flags, because
            every user of the machine can read command lines.
    """
    chosen = fields or tuple(name for name, info in Settings.model_fields.items() if not _is_secret(info))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
            if name != "settings"
        ]
        flags = [_flag(name) for name in chosen]

        def command(**values: Any) -> None:
            given = {name: values.pop(name) for name in chosen}
            function(settings=load_settings(given), **values)

        command.__name__ = function.__name__
        command.__doc__ = function.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *flags)}
        command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]  # typer reads it
        return command

    return decorate


def load_settings(given: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; exit with code 2 and one clear line per wrong field.

    Args:
        given: Values of flags; None where a flag was not used.
    """
    values = {_input_name(name): value for name, value in (given or {}).items() if value is not None}
    try:
        return Settings(**values)
    except ValidationError as error:
        fail("; ".join(_describe(item) for item in error.errors()), WRONG_USE)
    except yaml.YAMLError as error:
        fail(f"{YAML_FILE} is not YAML: {' '.join(str(error).split())}", WRONG_USE)
    except (SettingsError, OSError) as error:
        fail(f"the settings cannot be read: {error}", WRONG_USE)


def flag_name(field: str) -> str:
    """Command-line flag of a settings field."""
    return "--" + field.replace("_", "-")


def _flag(field: str) -> inspect.Parameter:
    info = Settings.model_fields[field]
    kind = _plain_type(info.annotation)
    text = " ".join([info.description or "", _default_text(info)]).strip()
    flag = flag_name(field)
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    return inspect.Parameter(
        field,
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(None, declaration, help=text, show_default=False, rich_help_panel=PANEL),
        annotation=kind | None,
    )


def _plain_type(annotation: Any) -> type:
    """The type without `None`; what typer shows, while pydantic does the checking."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        annotation = next(item for item in typing.get_args(annotation) if item is not types.NoneType)
    return annotation if annotation in {bool, int, float, str, Path} else str


def _is_secret(info: FieldInfo) -> bool:
    return SecretStr in (info.annotation, *typing.get_args(info.annotation))


def _default_text(info: FieldInfo) -> str:
    return "" if info.default is None else f"Default: {info.default}."


def _input_name(field: str) -> str:
    alias = Settings.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else field


def _describe(item: Mapping[str, Any]) -> str:
    """Name the field of a validation error and where it can be set."""
    message = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:
        return message
    name = str(item["loc"][0])
    fields = {_input_name(field): field for field in Settings.model_fields}
    if name not in fields:
        return f"unknown setting {name!r}: remove it from {YAML_FILE} or correct its name"
    field = fields[name]
    secret = _is_secret(Settings.model_fields[field])
    value = "" if secret else f" = {item['input']!r}"
    flag = "" if secret else f"{flag_name(field)}, "
    message = message[:1].lower() + message[1:]
    return f"{field}{value}: {message} (set by {flag}{variable(Settings, field)} or {YAML_FILE})"
