"""Which adapters an endpoint has in its engine: champions, challengers on trial, and what was evicted.

Every method runs on the agent's thread and blocks it while an adapter is fetched and staged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from collectors.store import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from adaptive.contracts import AdapterReference, PolicyDecided, SlotState
    from collectors.store import TensorStore

RETRY_SECONDS: Final = 2.0
"""From a try that failed through no fault of the policy's to the next."""
_STAGE_SECONDS: Final = 60.0
_STAGED_POLL_SECONDS: Final = 0.01


class Engine(Protocol):
    """The engine, as far as it is needed here."""

    def call(self, method: str, *args: Any) -> Any:
        """Run a worker RPC between two steps and return rank 0's result."""


class RefusedError(Exception):
    """A policy cannot be put in force here; the message says why, and the controller takes it back."""


class NotYetError(Exception):
    """A policy cannot be put in force at the moment, through no fault of its own: it is tried again."""


class Placement:
    """Brings the adapters that policies name into the engine.

    Args:
        engine: Holds them.
        store: Where they are fetched from.
        adapters: Directory of fetched files.
        target_sha256: Of the target that serves.
        turbo_sha256: Of the turbo that serves.
        meanwhile: Called over and over while an adapter is read.
        evicted: Called when an adapter lost its slot to another.
    """

    def __init__(
        self,
        engine: Engine,
        store: TensorStore,
        adapters: Path,
        *,
        target_sha256: str,
        turbo_sha256: str,
        meanwhile: Callable[[], None],
        evicted: Callable[[], None],
    ) -> None:
        self._engine: Final = engine
        self._store: Final = store
        self._adapters: Final = adapters
        self._target_sha256: Final = target_sha256
        self._turbo_sha256: Final = turbo_sha256
        self._meanwhile: Final = meanwhile
        self._evicted: Final = evicted
        self._champions: dict[str, tuple[AdapterReference, float]] = {}
        self._in_force: dict[str, AdapterReference | None] = {}
        self._on_trial: dict[str, AdapterReference] = {}
        self._load_after: dict[str, float] = {}
        self._log = structlog.get_logger("agent")

    @property
    def loadable(self) -> Collection[str]:
        """Tenants whose champion can be brought in on a request."""
        return self._champions

    def versions(self, tenant: str) -> tuple[int, int]:
        """The versions in force and on trial; 0 is none."""
        in_force, on_trial = self._in_force.get(tenant), self._on_trial.get(tenant)
        return in_force.version if in_force else 0, on_trial.version if on_trial else 0

    def apply(self, tenant: str, policy: PolicyDecided | None) -> None:
        """Put a policy in force; no policy is turbo alone.

        Raises:
            RefusedError: It never can be, here.
            NotYetError: Not now.
        """
        self._apply_champion(tenant, policy)
        self._apply_challenger(tenant, policy)

    def load(self, tenant: str) -> bool:
        """Bring in the champion of a tenant whose request found it cold; False where that must wait.

        Raises:
            RefusedError: It served before; its file was damaged since, or the store lost it.
        """
        if tenant not in self._champions or self._in_force.get(tenant) is not None:
            return False
        if time.monotonic() < self._load_after.get(tenant, 0.0):
            return False
        champion, weight = self._champions[tenant]
        loaded = False
        try:
            if self._engine.call("placeable", tenant):
                self._stage(champion)
                loaded = self._commit(champion, weight, evict=True)
                if not loaded:
                    self._engine.call("unstage_adapter", tenant)
        except NotYetError as error:
            self._log.warning("adapter cannot be loaded now", tenant=tenant, reason=str(error))
        except RefusedError:
            self._champions.pop(tenant)
            raise
        finally:
            if loaded:
                self._load_after.pop(tenant, None)
            else:  # not before its next request after this: every slot is busy, or the store is away
                self._load_after[tenant] = time.monotonic() + RETRY_SECONDS
        return loaded

    def forget(self, tenant: str) -> None:
        """Drop what is known of an erased tenant."""
        self._champions.pop(tenant, None)
        self._in_force.pop(tenant, None)
        self._on_trial.pop(tenant, None)
        self._load_after.pop(tenant, None)

    def compare(self, slots: Collection[SlotState]) -> tuple[set[str], set[str]]:
        """Believe the engine where it holds less than was committed.

        Returns:
            Tenants whose champion and tenants whose challenger is gone. A challenger's share of requests
            goes to the champion until its policy is applied again.
        """
        resident = {(slot.tenant, slot.version) for slot in slots if not slot.canary}
        trials = {(slot.tenant, slot.version) for slot in slots if slot.canary}
        cold = {
            tenant
            for tenant, champion in self._in_force.items()
            if champion is not None and (tenant, champion.version) not in resident
        }
        ended = {
            tenant
            for tenant, challenger in self._on_trial.items()
            if (tenant, challenger.version) not in trials
        }
        self._in_force |= dict.fromkeys(cold)
        for tenant in ended:
            del self._on_trial[tenant]
        return cold, ended

    def remove_unnamed_files(self, policies: Mapping[str, PolicyDecided]) -> None:
        """Delete fetched adapters that no policy names any more."""
        named = {champion.sha256 for champion, _ in self._champions.values()}
        for policy in policies.values():
            named |= {
                adapter.sha256 for adapter in (policy.champion, policy.challenger) if adapter is not None
            }
        for path in self._adapters.glob("*.safetensors"):
            if path.stem not in named:
                path.unlink(missing_ok=True)

    def _apply_champion(self, tenant: str, policy: PolicyDecided | None) -> None:
        champion = policy.champion if policy is not None else None
        if champion is None:
            self._champions.pop(tenant, None)
            self._engine.call("retire_adapter", tenant)
            self._in_force[tenant] = None
            return
        assert policy is not None
        resident = self._in_force.get(tenant)
        if resident == champion:
            self._engine.call("set_policy", tenant, policy.weight)
        else:
            self._check(champion)
            self._stage(champion)
            # A policy alone takes no other tenant's slot, unless it replaces the version in service.
            if not self._commit(champion, policy.weight, evict=resident is not None):
                self._engine.call("unstage_adapter", tenant)
                self._engine.call("retire_adapter", tenant)
                self._in_force[tenant] = None
        self._champions[tenant] = (champion, policy.weight)

    def _apply_challenger(self, tenant: str, policy: PolicyDecided | None) -> None:
        """Put the challenger beside the champion for its share of requests, or end its trial."""
        challenger = policy.challenger if policy is not None else None
        if challenger == self._on_trial.get(tenant):
            return
        if tenant in self._on_trial:
            del self._on_trial[tenant]
            move, canary = False, True  # requests in flight end with what they began with
            self._engine.call("retire_adapter", tenant, move, canary)
        if challenger is not None:
            self._check(challenger)
            self._stage(challenger)
            if not self._commit(challenger, 1.0, evict=True, canary=True):
                self._engine.call("unstage_adapter", tenant)
                raise NotYetError(f"no slot is free for challenger {tenant}@{challenger.version}")

    def _check(self, champion: AdapterReference) -> None:
        for field, ours in (("target_sha256", self._target_sha256), ("turbo_sha256", self._turbo_sha256)):
            theirs = getattr(champion, field)
            if theirs != ours:
                raise RefusedError(
                    f"adapter {champion.tenant}@{champion.version} was trained for another "
                    f"{field.split('_')[0]} ({theirs[:12]}…, this engine has {ours[:12]}…): retrain it on "
                    "this one"
                )

    def _stage(self, champion: AdapterReference) -> None:
        path = self._adapters / f"{champion.sha256}.safetensors"
        try:
            self._store.fetch(champion.uri, champion.sha256, path)
        except StoreUnavailableError as error:
            raise NotYetError(f"adapter {champion.tenant}@{champion.version}: {error}") from error
        except StoreError as error:
            raise RefusedError(f"adapter {champion.tenant}@{champion.version}: {error}") from error
        self._engine.call("stage_adapter", champion.tenant, champion.version, str(path))
        self._wait_staged(champion.tenant, champion.version)

    def _wait_staged(self, tenant: str, version: int) -> None:
        deadline = time.monotonic() + _STAGE_SECONDS
        while time.monotonic() < deadline:
            state, why = self._engine.call("staged_adapter", tenant, version)
            if state == "ready":
                return
            if state == "refused":
                raise RefusedError(why)
            self._meanwhile()
            time.sleep(_STAGED_POLL_SECONDS)
        raise NotYetError(
            f"adapter {tenant}@{version} was not read within {_STAGE_SECONDS:.0f} s: check the disk"
        )

    def _commit(
        self, champion: AdapterReference, weight: float, *, evict: bool, canary: bool = False
    ) -> bool:
        """Put a staged adapter in service; False: no slot may be overwritten now."""
        tenant = champion.tenant
        move = False  # requests in flight keep the adapter that they were admitted with
        trial = (True,) if canary else ()
        result = self._engine.call("commit_adapter", tenant, champion.version, weight, move, evict, *trial)
        if "error" in result:
            if result.get("retry"):
                return False
            raise RefusedError(result["error"])
        if canary:
            self._on_trial[tenant] = champion
        else:
            self._in_force[tenant] = champion
        if result.get("evicted") is not None:
            self._evicted()
        self._log.info(
            "adapter on trial" if canary else "adapter in service",
            tenant=tenant,
            version=champion.version,
            slot=result["slot"],
            evicted=result.get("evicted"),
            pause_ms=round(result["pause_ms"], 3),
        )
        return True
