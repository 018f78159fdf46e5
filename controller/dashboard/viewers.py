"""What a key opens on the dashboard: the same as at the admin API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select

from controller.identity import ADMIN, KEY_SCOPES, Principal, Scope
from controller.models import Key
from controller.names import KeyScope
from controller.tenants import hash_key

if TYPE_CHECKING:
    from controller.dashboard.sessions import Sessions
    from controller.database import Database
    from controller.metrics import Metrics
    from controller.rates import RateLimits


@dataclass(frozen=True, slots=True)
class Door:
    """What signing in needs."""

    sessions: Sessions
    rates: RateLimits
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whoever signed in."""

    principal: Principal

    @property
    def tenant(self) -> str | None:
        """The only tenant that is shown; None: all of them."""
        return self.principal.tenant

    @property
    def may_change(self) -> bool:
        """Whether there are buttons."""
        return self.principal.scope is not Scope.TENANT_READ

    @property
    def name(self) -> str:
        """What the page calls the viewer."""
        return "operator" if self.tenant is None else f"tenant {self.tenant}"


def sign_in(database: Database, sessions: Sessions, given: str) -> Viewer | None:
    """Find out whose key this is; None: nobody's, or one that opens the endpoint only."""
    given = given.strip()
    if sessions.is_admin_key(given):
        return Viewer(ADMIN)
    with database.read() as session:
        key_id = session.scalar(select(Key.id).where(Key.sha256 == hash_key(given)))
    return None if key_id is None else find_viewer(database, key_id)


def find_viewer(database: Database, key_id: str) -> Viewer | None:
    """Look up what a key opens now; None: nothing (any more)."""
    if key_id == ADMIN.name:
        return Viewer(ADMIN)
    with database.read() as session:
        key = session.get(Key, key_id)
        if key is None or key.revoked_at is not None or key.scope == KeyScope.INFERENCE:
            return None
        return Viewer(Principal(key.id, KEY_SCOPES[KeyScope(key.scope)], key.tenant))
