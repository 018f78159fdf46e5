"""Accounts and policies of made-up tenants."""

from __future__ import annotations

import hashlib

from adaptive.contracts import AdapterReference, PolicyDecided, TenantChanged, TenantState

TARGET = "1" * 64
TURBO = "2" * 64


def account(
    tenant: str = "acme",
    *keys: str,
    revision: int = 1,
    state: TenantState = TenantState.ACTIVE,
    learn: bool = True,
    share: bool = False,
) -> TenantChanged:
    """An account whose keys are `<tenant>-key` unless given."""
    return TenantChanged(
        tenant=tenant,
        revision=revision,
        state=state,
        key_hashes=[hashlib.sha256(key.encode()).hexdigest() for key in keys or (f"{tenant}-key",)],
        learn=learn,
        share=share,
        freeze=False,
        changed_at=0.0,
    )


def policy(
    tenant: str = "acme",
    policy_version: int = 1,
    champion: AdapterReference | None = None,
    *,
    weight: float = 1.0,
    max_lookahead: int = 4,
    control: float = 0.0,
    off: float = 0.0,
    challenger: AdapterReference | None = None,
    canary_share: float = 0.0,
) -> PolicyDecided:
    """A policy without control groups unless given."""
    return PolicyDecided(
        tenant=tenant,
        policy_version=policy_version,
        champion=champion,
        weight=weight,
        max_lookahead=max_lookahead,
        control_share=control,
        off_share=off,
        reason="test",
        decided_at=0.0,
        challenger=challenger,
        canary_share=canary_share,
    )
