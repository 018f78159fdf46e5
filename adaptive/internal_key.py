"""The token of internal routes and of forced arms, shared by the processes of one home."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptive.settings import Settings


def internal_key(settings: Settings) -> str:
    """The configured token, or the one kept in home (made on first use, readable by the owner only)."""
    if settings.internal_key is not None:
        return settings.internal_key.get_secret_value()
    path = settings.home / "internal_key"
    settings.home.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    token = secrets.token_hex(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return token
