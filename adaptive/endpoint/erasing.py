"""What an endpoint does with erased tenants and withdrawn consent; the agent's thread calls it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from adaptive.contracts import (
    TOPIC_ERASURE_ACKNOWLEDGED,
    ErasureAcknowledged,
    RemovedItems,
    encode,
)
from collectors.adapter_files import remove_adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from adaptive.contracts import TenantChanged, TenantErased
    from adaptive.endpoint.tenants import TenantDirectory
    from collectors.transport import Transport

_FLUSH_SECONDS: Final = 10.0


class Engine(Protocol):
    """The engine, as far as it is needed here."""

    def call(self, method: str, *args: Any) -> Any:
        """Run a worker RPC between two steps and return rank 0's result."""


class Erasing:
    """Brings consent and erasures into the engine, and acknowledges erasures.

    Args:
        engine: Told of both.
        directory: Loses erased tenants.
        adapters: Directory of fetched adapters.
        engine_id: For acknowledgements.
        turbo_sha256: Of the turbo that serves.
        turbo_tenants: Tenants whose data is in that turbo (`adaptive.lineage`).
        forget: Drops what the agent itself knows of a tenant, and saves.
    """

    def __init__(
        self,
        engine: Engine,
        directory: TenantDirectory,
        adapters: Path,
        *,
        engine_id: str,
        turbo_sha256: str,
        turbo_tenants: Collection[str],
        forget: Callable[[str], None],
    ) -> None:
        self._engine: Final = engine
        self._directory: Final = directory
        self._adapters: Final = adapters
        self._engine_id: Final = engine_id
        self._turbo_sha256: Final = turbo_sha256
        self._turbo_tenants: Final = frozenset(turbo_tenants)
        self._forget: Final = forget
        self._consent: Final[dict[str, tuple[bool, bool]]] = {}
        self._untold: Final[dict[str, tuple[bool, bool]]] = {}
        self._erased: Final[dict[str, TenantErased]] = {}
        self._unacknowledged: Final[dict[str, ErasureAcknowledged]] = {}

    def know(self, tenant: str, account: TenantChanged | None) -> None:
        """Take over a tenant's consent; the engine is told where it changed."""
        now = (account.learn, account.share) if account is not None else (False, False)
        before = self._consent.get(tenant)
        self._consent[tenant] = now
        if before is not None and before != now:
            self._untold[tenant] = now

    def tell_consent(self) -> None:
        """Let the engine follow what changed: requests in flight too, from the next step on."""
        for tenant, (learn, share) in list(self._untold.items()):
            self._engine.call("set_consent", tenant, learn, share)
            self._untold.pop(tenant, None)

    def erase(self, erasures: Mapping[str, TenantErased]) -> None:
        """Take over erasures that are new, or were announced again."""
        self._erased.update(erasures)

    def proceed(self, transport: Transport | None) -> None:
        """Forget erased tenants, then say so; what fails is tried again."""
        for tenant, erased in list(self._erased.items()):
            account = self._directory.accounts().get(tenant)
            if account is None or account.generation <= erased.generation:
                self._remove(erased)
            self._erased.pop(tenant, None)
        if transport is None:
            return
        for erasure_id, answer in list(self._unacknowledged.items()):
            transport.send(TOPIC_ERASURE_ACKNOWLEDGED, answer.tenant, encode(answer))
            transport.flush(_FLUSH_SECONDS)
            self._unacknowledged.pop(erasure_id, None)

    def _remove(self, erased: TenantErased) -> None:
        tenant = erased.tenant
        self._directory.forget(tenant)
        waiting, retired = "", []
        if tenant in self._turbo_tenants:
            self._directory.retire_turbo()
            retired = [f"turbo {self._turbo_sha256[:12]}"]
            waiting = (
                f"turbo {self._turbo_sha256[:12]} was trained with this tenant's data: every request runs "
                "without speculation until the endpoint is started with another one (ADAPTIVE_TURBO)"
            )
        removed: dict[str, int] = self._engine.call("forget_tenant", tenant, erased.generation)
        self._consent[tenant] = (False, False)
        self._untold.pop(tenant, None)
        self._forget(tenant)
        shas = {adapter.sha256 for adapter in erased.retired}
        removed = {**removed, "adapter files": remove_adapters(self._adapters, {tenant}, shas)}
        if not erased.sealed:
            self._unacknowledged[erased.erasure_id] = ErasureAcknowledged(
                tenant=tenant,
                erasure_id=erased.erasure_id,
                process=f"engine {self._engine_id}",
                acknowledged_at=time.time(),
                done=not waiting,
                removed=[RemovedItems(f"engine {place}", count) for place, count in removed.items()],
                retired=retired,
                waiting=waiting,
            )
        structlog.get_logger("agent").info(
            "tenant forgotten", tenant=tenant, erasure=erased.erasure_id, waiting=waiting or None
        )
