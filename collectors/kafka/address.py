"""What a `kafka://` URL names: brokers, and a prefix where several installations share a cluster."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs

import msgspec

from collectors.transport import TransportError

_SERVER: Final = re.compile(r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})$")
_PREFIX: Final = re.compile(r"^[a-z0-9._-]{0,64}$")


class KafkaAddress(msgspec.Struct, frozen=True):
    """Brokers to begin with, and what stands before the name of every topic and group."""

    servers: tuple[str, ...]
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> KafkaAddress:
        """Read `kafka://host:port,host:port` or `kafka://host:port?prefix=staging.`.

        Raises:
            TransportError: it is not of that form; says what is wrong with it.
        """
        scheme, _, rest = url.partition("://")
        hosts, _, query = rest.partition("?")
        servers = tuple(server for server in hosts.rstrip("/").split(",") if server)
        wrong = [server for server in servers if not _SERVER.match(server)]
        if scheme != "kafka" or not servers or wrong:
            about = f"{wrong[0]!r} is no host:port" if wrong else "it names no brokers"
            raise TransportError(f"log_url {url!r}: {about}; use kafka://host:port,host:port")
        options = parse_qs(query, keep_blank_values=True)
        unknown = sorted(options.keys() - {"prefix"})
        if unknown:
            raise TransportError(
                f"log_url {url!r} has the option {unknown[0]!r}: prefix is the only one; everything else "
                "is an ADAPTIVE_KAFKA_* setting"
            )
        prefix = options.get("prefix", [""])[-1]
        if not _PREFIX.match(prefix):
            raise TransportError(
                f"log_url {url!r}: prefix {prefix!r} may hold a-z, 0-9, '.', '_' and '-' only, at most 64"
            )
        return cls(servers, prefix)

    def full(self, name: str) -> str:
        """Name in the cluster of a topic or group."""
        return self.prefix + name

    def short(self, name: str) -> str | None:
        """A topic's name without the prefix; None where the topic belongs to somebody else."""
        return name.removeprefix(self.prefix) if name.startswith(self.prefix) else None
