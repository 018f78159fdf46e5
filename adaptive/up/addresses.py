"""URLs of what listens on a host."""

from __future__ import annotations

from typing import Final

_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared with, not bound to


def base_url(host: str, port: int) -> str:
    """URL at which a process of this machine reaches a port bound to `host`."""
    reachable = _ANY.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
