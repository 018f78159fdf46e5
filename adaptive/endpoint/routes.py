"""Which routes exist for whom. Deny by default: what is not listed here does not exist for clients."""

from __future__ import annotations

from typing import Final

Route = tuple[str, str]

GENERATING: Final[frozenset[Route]] = frozenset(
    {("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/responses")}
)
"""Need a tenant's key, use its quotas and get a plan for the engine."""
TEXT: Final[frozenset[Route]] = frozenset({("POST", "/tokenize"), ("POST", "/detokenize")})
"""Need a tenant's key and use its request quota."""
LISTING: Final[frozenset[Route]] = frozenset({("GET", "/v1/models")})
"""Need a tenant's key."""
OPEN: Final[frozenset[Route]] = frozenset({("GET", "/health")})
"""For load balancers, without a key."""
INTERNAL: Final[frozenset[Route]] = frozenset({("GET", "/metrics"), ("GET", "/internal/engine")})
"""Need the internal key."""
TENANT: Final = GENERATING | TEXT | LISTING
