"""The last accounts and policies, kept in home so that an endpoint starts without log or controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import structlog

from adaptive.contracts import PolicyDecided, TenantChanged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class SavedState(msgspec.Struct):
    """Newest account and policy per tenant."""

    accounts: dict[str, TenantChanged] = msgspec.field(default_factory=dict)
    policies: dict[str, PolicyDecided] = msgspec.field(default_factory=dict)


class StateFile:
    """Reads and atomically writes the saved state."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> SavedState:
        """The saved state; empty if there is none or it cannot be read (the log still has it)."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=SavedState)
        except FileNotFoundError:
            return SavedState()
        except (msgspec.MsgspecError, OSError) as error:
            structlog.get_logger("endpoint").warning(
                "saved state unreadable, starting from the log", path=str(self._path), error=str(error)
            )
            return SavedState()

    def save(self, accounts: Mapping[str, TenantChanged], policies: Mapping[str, PolicyDecided]) -> None:
        """Replace the file; it holds key hashes, so only the owner may read it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_bytes(msgspec.json.encode(SavedState(dict(accounts), dict(policies))))
        partial.replace(self._path)
