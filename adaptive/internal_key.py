"""The token of internal routes and of forced arms, shared by the processes of one home."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from adaptive.settings import Settings


def internal_key(settings: Settings) -> str:
    """The configured token, or the one kept in home (made on first use, readable by the owner only).

    Raises:
        ValueError: the token is empty, which would open the internal routes to everyone.
    """
    if settings.internal_key is not None:
        token = settings.internal_key.get_secret_value()
        remedy = "set ADAPTIVE_INTERNAL_KEY to a long random string, or unset it"
    else:
        path = settings.home / "internal_key"
        token = _kept(path)
        remedy = f"delete {path}"
    if not token:
        raise ValueError(f"internal_key is empty: {remedy}")
    return token


def _kept(path: Path) -> str:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Linked into place whole, so that a process starting beside this one never reads half a token.
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        try:
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(partial)
        finally:
            partial.unlink()
    return path.read_text().strip()
