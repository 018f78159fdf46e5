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
    TenantChanged,
)
from adaptive.endpoint.saved import StateFile
from collectors.state import CompactedView
from collectors.store import StoreError, StoreUnavailableError, TensorStore
from collectors.transport import Transport, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptive.endpoint.tenants import TenantDirectory
    from adaptive.settings import Settings

_POLL_SECONDS: Final = 0.25
_RETRY_SECONDS: Final = 2.0
_STAGE_SECONDS: Final = 60.0
_STAGED_POLL_SECONDS: Final = 0.05


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
        self._log = structlog.get_logger("agent")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adaptive-agent", daemon=True)
        self._transport: Transport | None = None
        self._accounts_view: CompactedView[TenantChanged] | None = None
        self._policies_view: CompactedView[PolicyDecided] | None = None
        self._policies: dict[str, PolicyDecided] = {}
        self._evicted: set[str] = set()
        self._pending: set[str] = set()
        self._in_force: dict[str, AdapterReference | None] = {}
        self._acknowledged: dict[str, int] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        self._waiting: dict[str, tuple[float, str]] = {}
        self._unsaved = False
        self._failing: dict[str, str] = {}
        self.latest: EngineTelemetry | None = None
        """The newest telemetry, for the endpoint's metrics; None before the first report."""

    def start(self) -> None:
        """Load the saved accounts and policies, then follow the log."""
        saved = self._file.load()
        for tenant, account in saved.accounts.items():
            self._directory.set_account(tenant, account)
        self._policies = dict(saved.policies)
        self._pending = set(saved.policies)
        self._thread.start()

    def stop(self) -> None:
        """Stop following; the engine keeps serving with what is in force."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        next_report = 0.0
        while not self._stop.is_set():
            self._attempt("log", self._follow_log)
            self._attempt("saved state", self._save)
            self._attempt("policies", self._apply_pending)
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + self._settings.telemetry_seconds
                self._attempt("telemetry", self._report)
            self._stop.wait(_POLL_SECONDS)
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
            self._evicted.discard(tenant)
        self._unsaved = self._unsaved or bool(policies)

    def _read_accounts(self) -> None:
        assert self._accounts_view is not None
        accounts = self._accounts_view.poll()
        for tenant, account in accounts.items():
            self._directory.set_account(tenant, account)
        self._unsaved = self._unsaved or bool(accounts)

    def _follow_accounts(self) -> None:
        """Read accounts alone, where policies must stay as they are: in the middle of applying one."""
        try:
            self._read_accounts()
        except Exception:
            self._close_log()
            raise

    def _save(self) -> None:
        if self._unsaved:
            self._file.save(self._directory.accounts(), self._policies)
            self._unsaved = False

    def _close_log(self) -> None:
        transport, self._transport = self._transport, None
        self._accounts_view = self._policies_view = None
        if transport is not None:
            try:
                transport.close()
            except TransportError as error:
                self._log.warning("log did not close cleanly", error=str(error))

    # -- policies ------------------------------------------------------------------------------------------

    def _apply_pending(self) -> None:
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
                self._refused[tenant] = (policy.policy_version, str(error))
                self._log.warning(
                    "policy refused", tenant=tenant, policy_version=policy.policy_version, reason=str(error)
                )
            else:
                self._pending.discard(tenant)
                self._refused.pop(tenant, None)
                if policy is not None:
                    self._acknowledged[tenant] = policy.policy_version
                else:
                    self._acknowledged.pop(tenant, None)
            in_force = self._in_force.get(tenant)
            self._directory.set_policy(tenant, policy, in_force.version if in_force is not None else 0)

    def _apply(self, tenant: str, policy: PolicyDecided | None) -> None:
        champion = policy.champion if policy is not None else None
        if champion is None:
            self._engine.call("retire_adapter", tenant)
            self._in_force[tenant] = None
            return
        assert policy is not None
        if self._in_force.get(tenant) == champion:
            self._engine.call("set_policy", tenant, policy.weight)
            return
        self._check(champion)
        path = self._settings.home / "endpoint" / "adapters" / f"{champion.sha256}.safetensors"
        try:
            self._store.fetch(champion.uri, champion.sha256, path)
        except StoreUnavailableError as error:
            raise NotYetError(f"adapter {tenant}@{champion.version}: {error}") from error
        except StoreError as error:
            raise RefusedError(f"adapter {tenant}@{champion.version}: {error}") from error
        self._engine.call("stage_adapter", tenant, champion.version, str(path))
        self._wait_staged(tenant, champion.version)
        result = self._engine.call("commit_adapter", tenant, champion.version, policy.weight)
        if "error" in result:
            raise (NotYetError if result.get("retry") else RefusedError)(result["error"])
        self._in_force[tenant] = champion
        self._log.info(
            "adapter in service",
            tenant=tenant,
            version=champion.version,
            slot=result["slot"],
            pause_ms=round(result["pause_ms"], 3),
        )

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
            refused_policies={tenant: version for tenant, (version, _) in self._refused.items()},
        )
        self.latest = telemetry
        if self._transport is not None:
            self._transport.send(
                contracts.TOPIC_ENGINE_TELEMETRY, self._engine_id, contracts.encode(telemetry)
            )

    def _note_evictions(self, slots: list[SlotState]) -> None:
        resident = {(slot.tenant, slot.version) for slot in slots}
        for tenant, champion in list(self._in_force.items()):
            if champion is not None and (tenant, champion.version) not in resident:
                self._in_force[tenant] = None
                self._evicted.add(tenant)
                self._acknowledged.pop(tenant, None)
                self._directory.set_policy(tenant, self._policies.get(tenant), 0)
        # A slot that is free again takes back an evicted adapter; with all taken, turbo serves meanwhile.
        # Slots are counted, not versions: one that came back may hold a second for its requests in flight.
        free = self._settings.slots - 1 - len(slots)
        for tenant in sorted(self._evicted)[: max(free, 0)]:
            self._evicted.discard(tenant)
            self._pending.add(tenant)
