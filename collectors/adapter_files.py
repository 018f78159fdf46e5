"""Local copies of adapters: whose they are, and removing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_MOST_HEADER_BYTES: Final = 16 << 20
"""An adapter's header is a few kB; anything larger is no adapter."""


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def adapter_tenant(path: Path) -> str | None:
    """Tenant that an adapter file (safetensors) names; None where it is no adapter, or half-written."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(size) if size <= _MOST_HEADER_BYTES else b""
        return msgspec.json.decode(header, type=_Header).metadata.get("tenant")
    except (OSError, msgspec.MsgspecError):
        return None


def find_adapters(directory: Path, tenants: Collection[str], sha256s: Collection[str] = ()) -> list[Path]:
    """Adapter files of tenants, or with one of these checksums as their name."""
    if not directory.is_dir():
        return []
    return [
        path
        for path in sorted(directory.iterdir())
        if path.is_file() and (path.stem in sha256s or adapter_tenant(path) in tenants)
    ]


def remove_adapters(directory: Path, tenants: Collection[str], sha256s: Collection[str] = ()) -> int:
    """Remove what `find_adapters` finds; returns how many."""
    gone = find_adapters(directory, tenants, sha256s)
    for path in gone:
        path.unlink(missing_ok=True)
    return len(gone)
