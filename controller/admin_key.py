"""The key of the admin API: given by a setting, or made once and kept in the state directory."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.settings import Settings

FILE_NAME: Final = "admin_key"
PREFIX: Final = "adm_"
KEY_BYTES: Final = 32


class AdminKeyError(Exception):
    """There is no usable admin key."""


def ensure_admin_key(settings: Settings) -> tuple[str, bool]:
    """Return the admin key, making one (mode 0600) if neither the setting nor the file has it.

    Returns:
        The key, and whether it was made just now and so must be shown.

    Raises:
        AdminKeyError: the key is empty, or the file cannot be read or written.
    """
    configured = _configured(settings)
    if configured is not None:
        return configured, False
    path = settings.home / FILE_NAME
    made = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    temporary = path.with_name(f".{FILE_NAME}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(made + "\n")
            # Of several processes that start at once one wins, and none reads a half-written key.
            os.link(temporary, path)
        except FileExistsError:
            return _read(path), False
        finally:
            temporary.unlink()
    except OSError as error:
        raise AdminKeyError(
            f"cannot write the admin key to {path} ({error}): make ADAPTIVE_HOME writable, "
            "or set ADAPTIVE_ADMIN_KEY"
        ) from error
    return made, True


def find_admin_key(settings: Settings) -> str:
    """Return the admin key of a controller that has run with these settings.

    Raises:
        AdminKeyError: there is none yet.
    """
    configured = _configured(settings)
    return configured if configured is not None else _read(settings.home / FILE_NAME)


def _configured(settings: Settings) -> str | None:
    if settings.admin_key is None:
        return None
    key = settings.admin_key.get_secret_value().strip()
    if not key:
        raise AdminKeyError("admin_key is empty: set ADAPTIVE_ADMIN_KEY to a long random string, or unset it")
    return key


def _read(path: Path) -> str:
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise AdminKeyError(
            f"no admin key in {path} ({error.strerror}): start the controller once with the same "
            "ADAPTIVE_HOME, or set ADAPTIVE_ADMIN_KEY"
        ) from error
    if not key:
        raise AdminKeyError(
            f"{path} is empty: delete it and restart the controller, or set ADAPTIVE_ADMIN_KEY"
        )
    return key
