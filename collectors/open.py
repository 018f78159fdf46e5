"""From a log URL to a transport."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collectors.sqlite import SqliteTransport
from collectors.transport import TransportError

if TYPE_CHECKING:
    from collectors.transport import Transport


def open_transport(url: str, *, lease_seconds: float = 10.0) -> Transport:
    """Open the log that `Settings.log_url` names.

    Args:
        url: `sqlite:///relative/path` or `sqlite:////absolute/path`.
        lease_seconds: A consumer that gave no sign for this long loses its partitions to its group.

    Raises:
        TransportError: the URL names no transport of this version, or its file is no log.
        TransportUnavailableError: the log cannot be opened at the moment.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and rest.strip("/"):
        return SqliteTransport(Path(rest[1:]), lease_seconds=lease_seconds)
    if scheme == "kafka":
        raise TransportError(
            f"log_url {url!r}: kafka:// arrives with the kafka transport; use sqlite:///path until then"
        )
    raise TransportError(
        f"log_url {url!r} names no log: use sqlite:///relative/path or sqlite:////absolute/path"
    )
