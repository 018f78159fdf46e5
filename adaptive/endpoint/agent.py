"""The agent thread: obeys the log's accounts and policies, and reports what the engine does.

It is the only caller of the worker's RPC methods. Everything it needs to serve survives in home, so a log or
a controller that is away changes nothing for clients.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog

from adaptive import contracts
from adaptive.contracts import EngineTelemetry, PolicyDecided, SlotState, TenantChanged
from adaptive.endpoint import placement
from adaptive.endpoint.erasing import Erasing
from adaptive.endpoint.placement import NotYetError, Placement, RefusedError
from adaptive.endpoint.saved import StateFile
from adaptive.endpoint.telemetry import EngineIdentity, telemetry
from collectors.erasure import ErasedTenants
from collectors.state import CompactedView
from collectors.store import TensorStore
from collectors.transport import Transport, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from adaptive.endpoint.tenants import TenantDirectory
    from adaptive.settings import Settings

_POLL_SECONDS: Final = 0.25
_LOAD_ROUND_SECONDS: Final = 0.05
"""Between two rounds of loads: requests of cold tenants may come by the hundred."""


class Engine(Protocol):
    """The engine as the agent needs it."""

    def call(self, method: str, *args: Any) -> Any:
        """Run a worker RPC between two steps and return rank 0's result."""


class Agent:
    """Applies policies to one engine and publishes its telemetry."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        directory: TenantDirectory,
        open_log: Callable[[], Transport],
        *,
        engine_id: str,
        target_sha256: str,
        turbo_sha256: str,
        turbo_tenants: Collection[str] = (),
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._directory = directory
        self._open_log = open_log
        self._identity = EngineIdentity(engine_id, time.time(), target_sha256, turbo_sha256)
        self._file = StateFile(settings.home / "endpoint" / "state.json")
        self._log = structlog.get_logger("agent")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adaptive-agent", daemon=True)
        self._transport: Transport | None = None
        self._accounts_view: CompactedView[TenantChanged] | None = None
        self._policies_view: CompactedView[PolicyDecided] | None = None
        self._policies: dict[str, PolicyDecided] = {}
        self._pending: set[str] = set()
        self._acknowledged: dict[str, int] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        self._waiting: dict[str, tuple[float, str]] = {}
        self._unsaved = False
        self._erased_view: ErasedTenants | None = None
        adapters = settings.home / "endpoint" / "adapters"
        self._placement = Placement(
            engine,
            TensorStore(settings.resolved_store_url),
            adapters,
            target_sha256=target_sha256,
            turbo_sha256=turbo_sha256,
            meanwhile=self._watch_accounts,
            evicted=self._compare_slots,
        )
        self._erasing = Erasing(
            engine,
            directory,
            adapters,
            engine_id=engine_id,
            turbo_sha256=turbo_sha256,
            turbo_tenants=turbo_tenants,
            forget=self._forget,
        )
        self._failing: dict[str, str] = {}
        self.latest: EngineTelemetry | None = None
        """The newest telemetry, for the endpoint's metrics; None before the first report."""

    def start(self) -> None:
        """Load the saved accounts and policies, then follow the log."""
        saved = self._file.load()
        for tenant, account in saved.accounts.items():
            self._directory.set_account(tenant, account)
            self._erasing.know(tenant, account)
        self._policies = dict(saved.policies)
        self._pending = set(saved.policies)
        self._thread.start()

    def stop(self) -> None:
        """Stop following; the engine keeps serving with what is in force."""
        self._stop.set()
        self._directory.cold_request.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        next_report = 0.0
        while not self._stop.is_set():
            self._attempt("log", self._follow_log)
            self._attempt("consent", self._erasing.tell_consent)
            self._attempt("erasures", self._erase)
            self._attempt("saved state", self._save)
            self._attempt("policies", self._apply_pending)
            self._attempt("adapters", self._load_cold)
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + self._settings.telemetry_seconds
                self._attempt("telemetry", self._report)
            if self._directory.cold_request.wait(_POLL_SECONDS):
                self._stop.wait(_LOAD_ROUND_SECONDS)
        self._close_log()

    def _attempt(self, part: str, run: Callable[[], None]) -> None:
        """Run a part of a round. The agent outlives a log, disk or engine that is away, and says so once."""
        try:
            run()
        except Exception as error:  # noqa: BLE001  what failed is logged and tried again, whatever it was
            text = f"{type(error).__name__}: {error}"
            if self._failing.get(part) != text:
                self._failing[part] = text
                self._log.warning(
                    "part of the agent fails, serving with the last state and trying again",
                    part=part,
                    error=text,
                    exc_info=not isinstance(error, TransportError),
                )
        else:
            if self._failing.pop(part, None) is not None:
                self._log.info("part of the agent is back", part=part)

    # -- the log -------------------------------------------------------------------------------------------

    def _follow_log(self) -> None:
        try:
            self._read_log()
        except Exception:
            self._close_log()  # a fresh consumer reads everything again
            raise

    def _read_log(self) -> None:
        if self._transport is None:
            self._transport = self._open_log()
            self._accounts_view = CompactedView(
                self._transport, contracts.TOPIC_TENANT_CHANGED, TenantChanged
            )
            self._policies_view = CompactedView(
                self._transport, contracts.TOPIC_POLICY_DECIDED, PolicyDecided
            )
            self._erased_view = ErasedTenants(self._transport)
        assert self._policies_view is not None
        self._read_accounts()
        policies = self._policies_view.poll()
        for tenant, policy in policies.items():
            known = self._policies.get(tenant)
            if policy is None:
                self._policies.pop(tenant, None)
            elif known is None or policy.policy_version >= known.policy_version:
                self._policies[tenant] = policy
            self._pending.add(tenant)
            self._waiting.pop(tenant, None)
        self._unsaved = self._unsaved or bool(policies)

    def _read_accounts(self) -> None:
        assert self._accounts_view is not None
        accounts = self._accounts_view.poll()
        for tenant, account in accounts.items():
            self._directory.set_account(tenant, account)
            self._erasing.know(tenant, account)
        self._unsaved = self._unsaved or bool(accounts)
        assert self._erased_view is not None
        self._erasing.erase(self._erased_view.poll())

    def _watch_accounts(self) -> None:
        """A revoked key must not wait for an adapter to be read."""
        if self._transport is not None:
            self._attempt("log", self._follow_accounts)

    def _follow_accounts(self) -> None:
        """Read accounts alone, where policies must stay as they are: in the middle of applying one."""
        try:
            self._read_accounts()
        except Exception:
            self._close_log()
            raise

    def _erase(self) -> None:
        self._erasing.proceed(self._transport)

    def _forget(self, tenant: str) -> None:
        """Drop what is known of an erased tenant, from the saved state too."""
        self._policies.pop(tenant, None)
        self._placement.forget(tenant)
        self._acknowledged.pop(tenant, None)
        self._refused.pop(tenant, None)
        self._waiting.pop(tenant, None)
        self._pending.discard(tenant)
        self.latest = None  # it names the tenant; the next report is a moment away
        self._unsaved = True
        self._save()

    def _save(self) -> None:
        if self._unsaved:
            self._file.save(self._directory.accounts(), self._policies)
            self._unsaved = False

    def _close_log(self) -> None:
        transport, self._transport = self._transport, None
        self._accounts_view = self._policies_view = self._erased_view = None
        if transport is not None:
            try:
                transport.close()
            except TransportError as error:
                self._log.warning("log did not close cleanly", error=str(error))

    # -- policies ------------------------------------------------------------------------------------------

    def _apply_pending(self) -> None:
        applied = False
        for tenant in sorted(self._pending):
            retry_at, reason = self._waiting.get(tenant, (0.0, ""))
            if time.monotonic() < retry_at:
                continue
            if self._transport is not None:  # a log that is away is for the next round: nothing waits for it
                self._attempt("log", self._follow_log)
            policy = self._policies.get(tenant)
            try:
                self._placement.apply(tenant, policy)
            except NotYetError as error:
                self._waiting[tenant] = (time.monotonic() + placement.RETRY_SECONDS, str(error))
                if str(error) != reason:
                    self._log.warning("policy has to wait, trying again", tenant=tenant, reason=str(error))
            except RefusedError as error:
                assert policy is not None
                self._pending.discard(tenant)
                self._refuse(tenant, policy.policy_version, str(error))
            else:
                applied = True
                self._pending.discard(tenant)
                self._refused.pop(tenant, None)
                if policy is not None:
                    self._acknowledged[tenant] = policy.policy_version
                else:
                    self._acknowledged.pop(tenant, None)
            self._tell_directory(tenant)
        if applied:
            self._placement.remove_unnamed_files(self._policies)

    def _load_cold(self) -> None:
        """Bring in the adapters that requests asked for; turbo serves them meanwhile."""
        for tenant in self._directory.take_cold():
            try:
                changed = self._placement.load(tenant)
            except RefusedError as error:
                self._refuse(tenant, self._acknowledged.pop(tenant, 0), str(error))
                changed = True
            if changed:
                self._tell_directory(tenant)

    def _refuse(self, tenant: str, policy_version: int, reason: str) -> None:
        self._refused[tenant] = (policy_version, reason)
        self._log.warning("policy refused", tenant=tenant, policy_version=policy_version, reason=reason)

    def _tell_directory(self, tenant: str) -> None:
        in_force, on_trial = self._placement.versions(tenant)
        self._directory.set_policy(tenant, self._policies.get(tenant), in_force, on_trial)
        self._directory.set_loadable(self._placement.loadable)

    # -- telemetry -----------------------------------------------------------------------------------------

    def _report(self) -> None:
        info = self._engine.call("adapter_info")
        slots = self._note_evictions(info)
        self.latest = telemetry(self._identity, info, slots, self._acknowledged, self._refused)
        if self._transport is not None:
            self._transport.send(
                contracts.TOPIC_ENGINE_TELEMETRY, self._identity.engine_id, contracts.encode(self.latest)
            )

    def _compare_slots(self) -> None:
        self._note_evictions(self._engine.call("adapter_info"))

    def _note_evictions(self, info: Mapping[str, Any]) -> list[SlotState]:
        slots = msgspec.convert(info["slots"], list[SlotState])
        cold, ended = self._placement.compare(slots)
        self._pending |= ended  # the next round brings challengers in again
        for tenant in cold | ended:
            self._tell_directory(tenant)
        return slots
