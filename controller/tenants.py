"""Tenants and their keys: create, change, announce."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from adaptive.contracts import TenantChanged, TenantState
from controller import erasure, rollout
from controller.errors import ConflictError, InvalidFieldError, NotFoundError
from controller.models import DecisionKind, Erasure, Key, Tenant, Version, VersionStatus
from controller.names import KeyScope
from controller.outbox import enqueue
from controller.schemas import TENANT_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

KEY_PREFIX: Final = "adp_"
TOKEN_PREFIX: Final = "adt_"  # noqa: S105  a prefix
"""Of keys of the admin API: seen at a glance in a leak, and never sent to an endpoint by mistake."""
KEY_BYTES: Final = 32
SHOWN_CHARACTERS: Final = 12
"""How much of a key lists show: the prefix and 48 of its 256 bits."""
POLICY_FIELDS: Final = ("weight", "max_lookahead", "control_share", "off_share")
QUOTA_FIELDS: Final = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
TENANT_FIELDS: Final = ("learn", "share", "freeze", "pin")
"""What a tenant may change of itself; the rest costs others something."""
BY: Final = {"admin": "an operator", "tenant": "the tenant"}
ACCOUNT_FIELDS: Final = (
    *("state", "learn", "share", "freeze", "retention_seconds", "retention_bytes"),
    *QUOTA_FIELDS,
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """Policy of a new tenant."""

    max_lookahead: int
    control_share: float
    off_share: float
    engine_lookahead: int
    """K: no tenant can have more."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Newest numbers the log has seen for a tenant; a new database must count on from them."""

    policy_version: int = 0
    revision: int = 0
    generation: int = 0


def is_tenant_id(text: str) -> bool:
    """Whether a tenant can be called so; PostgreSQL fails on some other texts, such as a zero byte."""
    return re.fullmatch(TENANT_PATTERN, text) is not None


def get_tenant(session: Session, tenant_id: str, *, lock: bool = False) -> Tenant:
    """Look a tenant up.

    Raises:
        NotFoundError: there is none of that name.
    """
    tenant = session.get(Tenant, tenant_id, with_for_update=lock or None) if is_tenant_id(tenant_id) else None
    if tenant is None:
        raise NotFoundError(
            f"unknown tenant {tenant_id!r}: GET /v1/tenants lists them, POST /v1/tenants makes one"
        )
    return tenant


def create_tenant(
    session: Session, tenant_id: str, *, learn: bool, defaults: Defaults, floor: Floor, now: float
) -> Tenant:
    """Add a tenant that turbo serves.

    Raises:
        ConflictError: the name is taken, or its former tenant is still being erased.
    """
    running = erasure.unfinished(session, tenant_id)
    if running is not None:
        raise ConflictError(
            f"tenant {tenant_id!r} is being erased: wait until GET /v1/jobs/{running.id} says done"
        )
    if session.get(Tenant, tenant_id) is not None:
        raise ConflictError(f"tenant {tenant_id!r} exists already: PATCH /v1/tenants/{tenant_id} changes it")
    floor = _above_erased(session, tenant_id, floor)
    tenant = Tenant(
        id=tenant_id,
        created_at=now,
        state=TenantState.ACTIVE,
        learn=learn,
        share=False,
        freeze=False,
        pin=None,
        weight=1.0,
        max_lookahead=defaults.max_lookahead,
        control_share=defaults.control_share,
        off_share=defaults.off_share,
        revision=floor.revision,
        policy_version=floor.policy_version,
        decided_at=now,
        champion=None,
        champion_since=now,
        generation=floor.generation,
        learned=learn,
    )
    session.add(tenant)
    session.flush()
    reason = "new tenant: turbo serves"
    announce(session, tenant, now)
    rollout.announce_policy(session, tenant, reason, now)
    rollout.record(session, tenant, DecisionKind.CREATE, actor="admin", version=None, reason=reason, now=now)
    return tenant


def patch_tenant(
    session: Session,
    tenant: Tenant,
    changes: Mapping[str, Any],
    defaults: Defaults,
    now: float,
    actor: str = "admin",
) -> None:
    """Change some fields of a tenant and announce what others need to know of it.

    Raises:
        InvalidFieldError: a value is impossible for this tenant.
    """
    changed = {field: value for field, value in changes.items() if getattr(tenant, field) != value}
    for field, value in changed.items():
        setattr(tenant, field, value)
    _check(tenant, defaults)
    tenant.learned = tenant.learned or tenant.learn
    if any(field in changed for field in ACCOUNT_FIELDS):
        announce(session, tenant, now)
    moved = "pin" in changed and _serve_pinned(session, tenant, now, actor)
    settings = [field for field in (*POLICY_FIELDS, "pin", *ACCOUNT_FIELDS) if field in changed]
    if not settings:
        return
    reason = f"set by {BY[actor]}: " + ", ".join(f"{field} = {changed[field]}" for field in settings)
    if not moved and any(field in changed for field in POLICY_FIELDS):
        rollout.announce_policy(session, tenant, reason, now)
    rollout.record(
        session,
        tenant,
        DecisionKind.CONFIGURE,
        actor=actor,
        version=tenant.champion,
        reason=reason,
        now=now,
        evidence=changed,
    )


def create_key(
    session: Session, tenant: Tenant, now: float, scope: KeyScope = KeyScope.INFERENCE
) -> tuple[Key, str]:
    """Make a key of 256 random bits.

    Returns:
        Its row and the key itself, which exists nowhere else.
    """
    prefix = KEY_PREFIX if scope is KeyScope.INFERENCE else TOKEN_PREFIX
    secret = prefix + secrets.token_urlsafe(KEY_BYTES)
    key = Key(
        id=f"key_{secrets.token_hex(8)}",
        tenant=tenant.id,
        sha256=hash_key(secret),
        prefix=secret[:SHOWN_CHARACTERS],
        created_at=now,
        revoked_at=None,
        scope=scope,
        expires_at=None,
    )
    session.add(key)
    session.flush()
    _announce_keys(session, tenant, key, now)
    return key, secret


def rotate_key(
    session: Session, tenant: Tenant, key_id: str, grace_seconds: float, now: float
) -> tuple[Key, str]:
    """Make a key in place of another, which ends after a while.

    Returns:
        As `create_key`.

    Raises:
        NotFoundError: the tenant has no such valid key.
        ConflictError: it was rotated before.
    """
    old = _valid_key(session, tenant, key_id)
    if old.expires_at is not None:
        raise ConflictError(f"key {key_id!r} was rotated before: rotate the newer one, or revoke this one")
    if grace_seconds > 0:
        old.expires_at = now + grace_seconds
    else:
        old.revoked_at = now
    return create_key(session, tenant, now, KeyScope(old.scope))


def revoke_key(session: Session, tenant: Tenant, key_id: str, now: float) -> None:
    """Make a key invalid.

    Raises:
        NotFoundError: the tenant has no such valid key.
    """
    key = _valid_key(session, tenant, key_id)
    key.revoked_at = now
    session.flush()
    _announce_keys(session, tenant, key, now)


def expire_keys(session: Session, now: float) -> int:
    """Revoke the keys whose time is over; returns how many."""
    query = select(Key).where(Key.expires_at <= now, Key.revoked_at.is_(None)).order_by(Key.tenant)
    count = 0
    for key in session.scalars(query).all():
        tenant = session.get_one(Tenant, key.tenant, with_for_update=True)
        revoke_key(session, tenant, key.id, now)
        count += 1
    return count


def _valid_key(session: Session, tenant: Tenant, key_id: str) -> Key:
    key = session.get(Key, key_id, with_for_update=True)
    if key is None or key.tenant != tenant.id or key.revoked_at is not None:
        raise NotFoundError(
            f"tenant {tenant.id!r} has no valid key {key_id!r}: GET /v1/tenants/{tenant.id}/keys lists them"
        )
    return key


def _announce_keys(session: Session, tenant: Tenant, key: Key, now: float) -> None:
    """Keys of the admin API are nobody else's business."""
    if key.scope == KeyScope.INFERENCE:
        announce(session, tenant, now)


def valid_keys(session: Session, tenant_id: str) -> list[Key]:
    """List the keys that open the endpoint, oldest first."""
    rows = session.scalars(
        select(Key)
        .where(Key.tenant == tenant_id, Key.revoked_at.is_(None), Key.scope == KeyScope.INFERENCE)
        .order_by(Key.created_at, Key.id)
    )
    return list(rows)


def hash_key(key: str) -> str:
    """SHA-256 (hex) of a whole key; slow hashes add nothing to 256 random bits."""
    return hashlib.sha256(key.encode()).hexdigest()


def announce(session: Session, tenant: Tenant, now: float) -> None:
    """Tell endpoints and learners the tenant's account."""
    tenant.revision += 1
    enqueue(
        session,
        TenantChanged(
            tenant=tenant.id,
            revision=tenant.revision,
            state=TenantState(tenant.state),
            key_hashes=[key.sha256 for key in valid_keys(session, tenant.id)],
            learn=tenant.learn,
            share=tenant.share,
            freeze=tenant.freeze,
            changed_at=now,
            generation=tenant.generation,
            retention_seconds=tenant.retention_seconds,
            retention_bytes=tenant.retention_bytes,
            requests_per_minute=tenant.requests_per_minute,
            tokens_per_minute=tenant.tokens_per_minute,
            concurrent_requests=tenant.concurrent_requests,
        ),
        now,
    )


def _above_erased(session: Session, tenant_id: str, floor: Floor) -> Floor:
    """Count on from former tenants of this name, so that nothing of theirs is taken for the new one's."""
    for former in session.scalars(select(Erasure).where(Erasure.tenant == tenant_id)):
        floor = Floor(
            max(floor.policy_version, former.policy_version),
            max(floor.revision, former.revision),
            max(floor.generation, former.generation + 1),
        )
    return floor


def _check(tenant: Tenant, defaults: Defaults) -> None:
    if tenant.max_lookahead > defaults.engine_lookahead:
        raise InvalidFieldError(
            "max_lookahead",
            f"{tenant.max_lookahead} exceeds the engines' maximum of {defaults.engine_lookahead}: "
            "lower it, or raise ADAPTIVE_ENGINE_LOOKAHEAD and restart",
        )
    if tenant.control_share + tenant.off_share > 1:
        raise InvalidFieldError(
            "control_share",
            f"control_share ({tenant.control_share}) and off_share ({tenant.off_share}) add up to more "
            "than 1: lower one of them",
        )


def _serve_pinned(session: Session, tenant: Tenant, now: float, actor: str) -> bool:
    """Put the pinned version in service; False if it serves already or the pin was taken away."""
    if tenant.pin is None or tenant.pin == (tenant.champion or 0):
        return False
    reason = f"pinned by {BY[actor]}"
    if tenant.pin == 0:
        rollout.serve_turbo(session, tenant, actor=actor, reason=reason, now=now)
        return True
    row = session.get(Version, (tenant.id, tenant.pin))
    if row is None or row.status in (VersionStatus.REFUSED, VersionStatus.ERASED, VersionStatus.DELETED):
        if row is None:
            state = "does not exist"
        elif row.status != VersionStatus.REFUSED:
            state = f"is gone: it {row.reason}"
        else:
            state = f"was refused by an engine ({row.reason})"
        raise InvalidFieldError(
            "pin",
            f"version {tenant.pin} {state}: GET /v1/tenants/{tenant.id}/versions lists them; 0 pins turbo",
        )
    rollout.promote(session, tenant, tenant.pin, actor=actor, reason=reason, now=now)
    return True
