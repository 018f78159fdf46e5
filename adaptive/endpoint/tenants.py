"""Who may call the endpoint and what is decided for them: the agent writes it, every request reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import random
import threading
from typing import TYPE_CHECKING

from adaptive.contracts import Arm, PolicyDecided, TenantChanged, TenantState
from adaptive.endpoint.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """What a request was admitted with."""

    arm: Arm
    """Assigned: turbo while the tenant's adapter is not resident."""
    version: int
    """Adapter version in force, 0 for turbo and off."""
    lookahead: int | None
    canary: bool = False
    """Whether the version is the tenant's challenger on trial."""
    cold: bool = False
    """Whether turbo stands in for an adapter that is not resident and is being brought in."""

    @property
    def wanted(self) -> Arm:
        """What the engine is asked for: an adapter that comes in meanwhile is used."""
        return Arm.ADAPTER if self.cold else self.arm


class TenantDirectory:
    """Accounts and policies as last seen in the log. Thread-safe: the agent's thread writes."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[str, TenantChanged] = {}
        self._tenant_of_key: dict[str, str] = {}
        self._policies: dict[str, PolicyDecided] = {}
        self._in_force: dict[str, int] = {}
        self._on_trial: dict[str, int] = {}
        self._turbo_retired = False
        self._loadable: frozenset[str] = frozenset()
        self._cold: dict[str, None] = {}
        self.cold_request = threading.Event()
        """Set when a request wants an adapter that could be loaded and is not resident."""
        # Which requests are controls needs no secrecy, only independence from their content.
        self._chance = chance or random.Random()  # noqa: S311

    def set_account(self, tenant: str, account: TenantChanged | None) -> None:
        """Take over a tenant's account; None removes it."""
        with self._lock:
            known = self._accounts.get(tenant)
            if account is not None and known is not None and account.revision < known.revision:
                return
            for key_hash in known.key_hashes if known else ():
                self._tenant_of_key.pop(key_hash, None)
            if account is None:
                self._accounts.pop(tenant, None)
                return
            self._accounts[tenant] = account
            self._tenant_of_key.update(dict.fromkeys(account.key_hashes, tenant))

    def set_policy(
        self, tenant: str, policy: PolicyDecided | None, version_in_force: int, on_trial: int = 0
    ) -> None:
        """Note the policy an engine obeys, the adapter version it has in service (0: turbo) and on trial."""
        with self._lock:
            if policy is None:
                self._policies.pop(tenant, None)
            else:
                self._policies[tenant] = policy
            self._in_force[tenant] = version_in_force
            self._on_trial[tenant] = on_trial

    def forget(self, tenant: str) -> None:
        """Drop an erased tenant: its keys are unknown from now on."""
        self.set_account(tenant, None)
        with self._lock:
            self._policies.pop(tenant, None)
            self._in_force.pop(tenant, None)
            self._on_trial.pop(tenant, None)

    def retire_turbo(self) -> None:
        """Admit every request without speculation: turbo was trained with an erased tenant's data."""
        with self._lock:
            self._turbo_retired = True

    def accounts(self) -> Mapping[str, TenantChanged]:
        """A copy of every account."""
        with self._lock:
            return dict(self._accounts)

    def set_loadable(self, tenants: Iterable[str]) -> None:
        """Note whose adapter could be loaded on demand, resident ones included."""
        with self._lock:
            self._loadable = frozenset(tenants)

    def take_cold(self) -> list[str]:
        """Tenants whose adapter was wanted and not resident since the last call, first wanted first."""
        with self._lock:
            cold = list(self._cold)
            self._cold.clear()
            self.cold_request.clear()
        return cold

    def version_in_force(self, tenant: str) -> int:
        """Adapter version that a tenant's requests are admitted with, 0 for turbo."""
        with self._lock:
            return self._in_force.get(tenant, 0)

    def overview(self) -> dict[str, tuple[TenantChanged, PolicyDecided | None, int]]:
        """Account, policy and adapter version in force per tenant."""
        with self._lock:
            return {
                tenant: (account, self._policies.get(tenant), self._in_force.get(tenant, 0))
                for tenant, account in self._accounts.items()
            }

    def authenticate(self, authorization: str | None) -> TenantChanged:
        """Tenant of an `Authorization: Bearer <key>` header.

        Raises:
            EndpointError: 401 for a missing or unknown key, 403 for a suspended tenant.
        """
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise EndpointError(
                401, "no API key: send it as 'Authorization: Bearer <key>'", code="missing_api_key"
            )
        digest = hashlib.sha256(key.strip().encode()).hexdigest()
        with self._lock:
            tenant = self._tenant_of_key.get(digest)
            account = self._accounts.get(tenant) if tenant is not None else None
        # The lookup is by digest of a 256-bit key; the comparison keeps even that free of timing.
        if account is None or not any(hmac.compare_digest(digest, known) for known in account.key_hashes):
            raise EndpointError(
                401, "this API key is not valid here: ask the operator for a new one", code="invalid_api_key"
            )
        if account.state is not TenantState.ACTIVE:
            raise EndpointError(
                403, f"tenant {account.tenant} is {account.state}: ask the operator", code="tenant_suspended"
            )
        return account

    def admit(self, tenant: str, forced: Arm | None, lookahead: int | None) -> Admission:
        """Choose who drafts for a request.

        A small share of every tenant's requests runs turbo, a smaller one runs without speculation: the live
        control groups that lift is measured against.

        Args:
            tenant: tenant id.
            forced: arm asked for by an internal caller.
            lookahead: the request's own cap; 0 means no speculation.
        """
        with self._lock:
            policy = self._policies.get(tenant)
            version = self._in_force.get(tenant, 0)
            on_trial = self._on_trial.get(tenant, 0)
            draw = self._chance.random()
        cap = policy.max_lookahead if policy is not None else None
        if lookahead is not None:
            cap = lookahead if cap is None else min(cap, lookahead)
        arm, canary = forced, False
        if arm is None:
            off = policy.off_share if policy is not None else 0.0
            control = policy.control_share if policy is not None else 0.0
            if cap == 0 or draw < off:
                arm = Arm.OFF
            elif draw < off + control:
                arm = Arm.TURBO
            else:
                arm = Arm.ADAPTER
                share = policy.canary_share if policy is not None else 0.0
                canary = bool(on_trial) and draw < off + control + share
        if self._turbo_retired:
            arm = Arm.OFF
        if arm is not Arm.ADAPTER:
            return Admission(arm, 0, cap)
        if canary:
            return Admission(arm, on_trial, cap, canary=True)
        if version:
            return Admission(arm, version, cap)
        return Admission(Arm.TURBO, 0, cap, cold=self._want(tenant))

    def _want(self, tenant: str) -> bool:
        """Ask for a tenant's adapter to be loaded; whether it can be."""
        with self._lock:
            loadable = tenant in self._loadable
            if loadable:
                self._cold[tenant] = None
                self.cold_request.set()
        return loadable
