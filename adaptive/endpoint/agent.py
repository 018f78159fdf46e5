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
from adaptive.contracts import (
    AdapterReference,
    ArmCounters,
    EngineTelemetry,
    PolicyDecided,
    SlotState,
    SlotUsage,
    TenantChanged,
)
from adaptive.endpoint.erasing import Erasing
from adaptive.endpoint.saved import StateFile
from collectors.erasure import ErasedTenants
from collectors.state import CompactedView
from collectors.store import StoreError, StoreUnavailableError, TensorStore
from collectors.transport import Transport, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from adaptive.endpoint.tenants import TenantDirectory
    from adaptive.settings import Settings

_POLL_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 2.0
_STAGE_SECONDS: Final = 60.0
_STAGED_POLL_SECONDS: Final = 0.01
_LOAD_ROUND_SECONDS: Final = 0.05
"""Between two rounds of loads: requests of cold tenants may come by the hundred."""


class Engine(Protocol):
    """The engine as the agent needs it."""

    def call(self, method: str, *args: Any) -> Any:
        """Run a worker RPC between two steps and return rank 0's result."""


class RefusedError(Exception):
    """A policy cannot be put in force here; the message says why, and the controller takes it back."""


class NotYetError(Exception):
    """A policy cannot be put in force at the moment, through no fault of its own: it is tried again."""


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
        self._store = TensorStore(settings.resolved_store_url)
        self._engine_id = engine_id
        self._target_sha256 = target_sha256
        self._turbo_sha256 = turbo_sha256
        self._started_at = time.time()
        self._file = StateFile(settings.home / "endpoint" / "state.json")
        self._adapters = settings.home / "endpoint" / "adapters"
        self._log = structlog.get_logger("agent")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adaptive-agent", daemon=True)
        self._transport: Transport | None = None
        self._accounts_view: CompactedView[TenantChanged] | None = None
        self._policies_view: CompactedView[PolicyDecided] | None = None
        self._policies: dict[str, PolicyDecided] = {}
        self._champions: dict[str, tuple[AdapterReference, float]] = {}
        self._pending: set[str] = set()
        self._in_force: dict[str, AdapterReference | None] = {}
        self._on_trial: dict[str, AdapterReference] = {}
        self._acknowledged: dict[str, int] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        self._waiting: dict[str, tuple[float, str]] = {}
        self._load_after: dict[str, float] = {}
        self._unsaved = False
        self._erased_view: ErasedTenants | None = None
        self._erasing = Erasing(
            engine,
            directory,
            settings.home / "endpoint" / "adapters",
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
        self._champions.pop(tenant, None)
        self._in_force.pop(tenant, None)
        self._on_trial.pop(tenant, None)
        self._acknowledged.pop(tenant, None)
        self._refused.pop(tenant, None)
        self._waiting.pop(tenant, None)
        self._load_after.pop(tenant, None)
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
                self._apply(tenant, policy)
            except NotYetError as error:
                self._waiting[tenant] = (time.monotonic() + _RETRY_SECONDS, str(error))
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
            self._remove_unnamed_files()

    def _apply(self, tenant: str, policy: PolicyDecided | None) -> None:
        self._apply_champion(tenant, policy)
        self._apply_challenger(tenant, policy)

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

    def _load_cold(self) -> None:
        """Bring in the adapters that requests asked for; turbo serves them meanwhile."""
        for tenant in self._directory.take_cold():
            if tenant not in self._champions or self._in_force.get(tenant) is not None:
                continue
            if time.monotonic() < self._load_after.get(tenant, 0.0):
                continue
            champion, weight = self._champions[tenant]
            try:
                if self._engine.call("placeable", tenant):
                    self._stage(champion)
                    if self._commit(champion, weight, evict=True):
                        self._load_after.pop(tenant, None)
                        self._tell_directory(tenant)
                        continue
                    self._engine.call("unstage_adapter", tenant)
            except NotYetError as error:
                self._log.warning("adapter cannot be loaded now", tenant=tenant, reason=str(error))
            except RefusedError as error:
                # It served before: its file was damaged, or the store lost it.
                self._champions.pop(tenant)
                self._refuse(tenant, self._acknowledged.pop(tenant, 0), str(error))
                self._tell_directory(tenant)
            # Not before its next request after this: every slot is busy, or the store is away.
            self._load_after[tenant] = time.monotonic() + _RETRY_SECONDS

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
        evicted = result.get("evicted")
        if evicted is not None:
            self._note_evictions(msgspec.convert(self._engine.call("adapter_info")["slots"], list[SlotState]))
        self._log.info(
            "adapter on trial" if canary else "adapter in service",
            tenant=tenant,
            version=champion.version,
            slot=result["slot"],
            evicted=evicted,
            pause_ms=round(result["pause_ms"], 3),
        )
        return True

    def _refuse(self, tenant: str, policy_version: int, reason: str) -> None:
        self._refused[tenant] = (policy_version, reason)
        self._log.warning("policy refused", tenant=tenant, policy_version=policy_version, reason=reason)

    def _tell_directory(self, tenant: str) -> None:
        in_force, on_trial = self._in_force.get(tenant), self._on_trial.get(tenant)
        self._directory.set_policy(
            tenant,
            self._policies.get(tenant),
            in_force.version if in_force is not None else 0,
            on_trial.version if on_trial is not None else 0,
        )
        self._directory.set_loadable(self._champions)

    def _remove_unnamed_files(self) -> None:
        """Delete fetched adapters that no policy names any more."""
        named = {champion.sha256 for champion, _ in self._champions.values()}
        for policy in self._policies.values():
            named |= {
                adapter.sha256 for adapter in (policy.champion, policy.challenger) if adapter is not None
            }
        for path in self._adapters.glob("*.safetensors"):
            if path.stem not in named:
                path.unlink(missing_ok=True)

    def _check(self, champion: AdapterReference) -> None:
        for field, ours in (("target_sha256", self._target_sha256), ("turbo_sha256", self._turbo_sha256)):
            theirs = getattr(champion, field)
            if theirs != ours:
                raise RefusedError(
                    f"adapter {champion.tenant}@{champion.version} was trained for another "
                    f"{field.split('_')[0]} ({theirs[:12]}…, this engine has {ours[:12]}…): retrain it on "
                    "this one"
                )

    def _wait_staged(self, tenant: str, version: int) -> None:
        deadline = time.monotonic() + _STAGE_SECONDS
        while time.monotonic() < deadline:
            state, why = self._engine.call("staged_adapter", tenant, version)
            if state == "ready":
                return
            if state == "refused":
                raise RefusedError(why)
            if self._transport is not None:  # a revoked key must not wait for an adapter to be read
                self._attempt("log", self._follow_accounts)
            time.sleep(_STAGED_POLL_SECONDS)
        raise NotYetError(
            f"adapter {tenant}@{version} was not read within {_STAGE_SECONDS:.0f} s: check the disk"
        )

    # -- telemetry -----------------------------------------------------------------------------------------

    def _report(self) -> None:
        info = self._engine.call("adapter_info")
        slots = msgspec.convert(info["slots"], list[SlotState])
        self._note_evictions(slots)
        capture = info["capture"]
        telemetry = EngineTelemetry(
            engine_id=self._engine_id,
            started_at=self._started_at,
            reported_at=time.time(),
            target_sha256=self._target_sha256,
            turbo_sha256=self._turbo_sha256,
            counters=msgspec.convert(info["counters"], list[ArmCounters]),
            slots=slots,
            acknowledged=dict(self._acknowledged),
            refused={tenant: why for tenant, (_, why) in self._refused.items()},
            swap_pause_ms=info["pauses_ms"],
            traces_published=capture.get("published", 0),
            traces_dropped=capture.get("dropped", 0),
            queue_depth=capture.get("queue_depth", 0),
            queue_bytes=capture.get("queue_bytes", 0),
            dropped_bytes=capture.get("dropped_bytes", 0),
            feature_bytes=capture.get("features", {}).get("bytes", 0),
            features_lost=capture.get("features", {}).get("lost", 0),
            trace_rate=capture.get("sampling", {}).get("trace_rate", 1.0),
            feature_rate=capture.get("sampling", {}).get("feature_rate", 1.0),
            refused_policies={tenant: version for tenant, (version, _) in self._refused.items()},
            slot_usage=msgspec.convert(info.get("slot_usage", []), list[SlotUsage]),
            calibration_error=info.get("calibration_error", {}),
            steps=info.get("steps", 0),
            floor_steps=info.get("floor_steps", 0),
            target_seconds=info.get("cost", {}).get("target", {}),
            draft_pass_seconds=info.get("cost", {}).get("next_pass", {}),
        )
        self.latest = telemetry
        if self._transport is not None:
            self._transport.send(
                contracts.TOPIC_ENGINE_TELEMETRY, self._engine_id, contracts.encode(telemetry)
            )

    def _note_evictions(self, slots: list[SlotState]) -> None:
        """Believe the engine where it holds less than was committed."""
        resident = {(slot.tenant, slot.version) for slot in slots if not slot.canary}
        trials = {(slot.tenant, slot.version) for slot in slots if slot.canary}
        for tenant, challenger in list(self._on_trial.items()):
            if (tenant, challenger.version) not in trials:
                # Its share of requests goes to the champion; the next round brings it in again.
                del self._on_trial[tenant]
                self._pending.add(tenant)
                self._tell_directory(tenant)
        for tenant, champion in list(self._in_force.items()):
            if champion is not None and (tenant, champion.version) not in resident:
                self._in_force[tenant] = None
                self._tell_directory(tenant)
