"""Names that the API, its client and the tables share; needs no extra."""

from __future__ import annotations

import enum


class KeyScope(enum.StrEnum):
    """What a key opens."""

    INFERENCE = "inference"
    """The endpoint, and nothing of the admin API."""
    TENANT_READ = "tenant:read"
    """What the admin API shows of its tenant."""
    TENANT_WRITE = "tenant:write"
    """Also what a tenant may change of itself."""
