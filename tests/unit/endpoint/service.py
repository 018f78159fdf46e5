"""A home with a real log and a real store, a fake engine, and an agent between them."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from adaptive import contracts
from adaptive.contracts import AdapterReference, EngineTelemetry, PolicyDecided, TenantChanged
from adaptive.endpoint.agent import Agent
from adaptive.endpoint.errors import EndpointError
from adaptive.endpoint.tenants import TenantDirectory
from adaptive.engine.slots import NoFreeSlotError, SlotTable, owned_by, owner
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.store import TensorStore
from collectors.transport import Transport, TransportUnavailableError
from tests.unit.endpoint.records import TARGET, TURBO
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = "127.0.0.1:8000"


class Engine:
    """Keeps what the worker would hold; fails where a test asks it to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.staged: dict[tuple[str, int], bytes] = {}
        self.refuse: dict[tuple[str, int], str] = {}
        self.full = False
        self.broken = False
        self.slots: dict[str, dict[str, Any]] = {}
        self.pauses: list[float] = []
        self.forgotten: set[str] = set()

    def call(self, method: str, *args: Any) -> Any:
        """Run an RPC."""
        if self.broken:
            raise TimeoutError("the engine does not answer")
        if method != "adapter_info":
            self.calls.append((method, *args))
        return getattr(self, method)(*args)

    def stage_adapter(self, tenant: str, version: int, path: str) -> None:
        """Read the file."""
        with open(path, "rb") as file:  # noqa: PTH123  as text comes from the agent
            self.staged[tenant, version] = file.read()

    def staged_adapter(self, tenant: str, version: int) -> tuple[str, str]:
        """What became of it."""
        if (tenant, version) in self.refuse:
            return "refused", self.refuse[tenant, version]
        return ("ready", "") if (tenant, version) in self.staged else ("absent", "")

    def unstage_adapter(self, tenant: str) -> None:
        """Forget what was read."""
        for key in [key for key in self.staged if key[0] == tenant]:
            del self.staged[key]

    def placeable(self, _tenant: str) -> bool:
        """Whether a commit would find a slot."""
        return not self.full

    def commit_adapter(
        self, tenant: str, version: int, weight: float, move: bool, evict: bool, canary: bool = False
    ) -> dict[str, Any]:
        """Put it in service, or on trial."""
        assert not move
        del evict
        if self.full:
            return {"error": f"no free adapter slot for tenant {tenant!r}", "retry": True}
        del self.staged[tenant, version]
        self.slots[owner(tenant, canary=canary)] = {
            "slot": 1 + canary,
            "tenant": tenant,
            "version": version,
            "weight": weight,
            "requests": 0,
            "canary": canary,
        }
        self.pauses.append(0.5)
        return {"slot": 1, "pause_ms": 0.5}

    def retire_adapter(self, tenant: str, move: bool = False, canary: bool = False) -> None:
        """Back to turbo, or the end of a trial."""
        assert not move
        self.slots.pop(owner(tenant, canary=canary), None)

    def set_consent(self, tenant: str, learn: bool, share: bool) -> int:
        """Follow a tenant's consent."""
        del tenant, learn, share
        return 0

    def forget_tenant(self, tenant: str, generation: int) -> dict[str, int]:
        """Drop a tenant."""
        del generation
        self.forgotten.add(tenant)
        self.slots.pop(tenant, None)
        return {"records": 0}

    def set_policy(self, tenant: str, weight: float) -> None:
        """A new weight."""
        self.slots[tenant]["weight"] = weight

    def adapter_info(self) -> dict[str, Any]:
        """As the worker reports."""
        counter = {"tenant": "acme", "arm": "turbo", "version": 0, "requests": 2, "verify_steps": 5}
        return {
            "counters": [] if "acme" in self.forgotten else [counter],
            "slots": list(self.slots.values()),
            "requests": 0,
            "pauses_ms": self.pauses,
            "capture": {"published": 7, "dropped": 1, "queue_depth": 2},
        }

    def versions(self) -> dict[str, int]:
        """Tenant -> version in service."""
        return {tenant: slot["version"] for tenant, slot in self.slots.items()}


class SlotEngine(Engine):
    """Places adapters as the worker does: free slots first, then the one idle for longest."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.table = SlotTable(slots)

    def placeable(self, tenant: str) -> bool:
        """Whether a commit would find a slot."""
        return self.table.placeable(tenant)

    def commit_adapter(
        self, tenant: str, version: int, weight: float, move: bool, evict: bool, canary: bool = False
    ) -> dict[str, Any]:
        """Put it in service, in another's place if need be."""
        assert not move
        try:
            slot, evicted = self.table.reserve(owner(tenant, canary=canary), evict=evict)
        except NoFreeSlotError as error:
            return {"error": str(error), "retry": True}
        del self.staged[tenant, version]
        self.table.commit(owner(tenant, canary=canary), version, slot, weight)
        return {"slot": slot, "pause_ms": 0.5, "evicted": evicted}

    def retire_adapter(self, tenant: str, move: bool = False, canary: bool = False) -> None:
        """Back to turbo, or the end of a trial."""
        assert not move
        self.table.retire(owner(tenant, canary=canary))

    def set_policy(self, tenant: str, weight: float) -> None:
        """A new weight, where there is an adapter."""
        self.table.set_weight(tenant, weight)

    def adapter_info(self) -> dict[str, Any]:
        """As the worker reports."""
        slots = [
            {
                "slot": slot.index,
                "tenant": owned_by(slot.tenant or "")[0],
                "version": slot.version,
                "weight": slot.weight,
                "requests": slot.requests,
                "canary": owned_by(slot.tenant or "")[1],
            }
            for slot in self.table.occupied()
        ]
        usage = msgspec.to_builtins(self.table.usage())
        return super().adapter_info() | {"slots": slots, "slot_usage": usage}

    def commits(self, tenant: str) -> int:
        """How often an adapter of the tenant was put in service."""
        return len([call for call in self.calls if call[:2] == ("commit_adapter", tenant)])


class Stack:
    """One home: log, store, engine, directory and as many agents, one after another, as a test wants."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home, telemetry_seconds=0.02)
        self.log = open_transport(self.settings.resolved_log_url)
        self.store = TensorStore(self.settings.resolved_store_url)
        self.telemetry = self.log.consumer([contracts.TOPIC_ENGINE_TELEMETRY], None)
        self.reports: list[EngineTelemetry] = []
        self.engine = Engine()
        self.directory = TenantDirectory()
        self.away = threading.Event()
        self.turbo_tenants: tuple[str, ...] = ()
        self.agent: Agent | None = None

    def open(self) -> Transport:
        """The agent's own connection."""
        if self.away.is_set():
            raise TransportUnavailableError("the log is away")
        return open_transport(self.settings.resolved_log_url)

    def use_slots(self, slots: int) -> SlotEngine:
        """Serve with the worker's own bookkeeping of slots."""
        self.settings = self.settings.model_copy(update={"slots": slots})
        self.engine = made = SlotEngine(slots)
        return made

    def start(self) -> Agent:
        """Start an agent over a fresh directory."""
        self.directory = TenantDirectory()
        self.agent = Agent(
            self.settings,
            self.engine,
            self.directory,
            self.open,
            engine_id=ENGINE,
            target_sha256=TARGET,
            turbo_sha256=TURBO,
            turbo_tenants=self.turbo_tenants,
        )
        self.agent.start()
        return self.agent

    def stop(self) -> None:
        """Stop the agent, if one runs."""
        if self.agent is not None:
            self.agent.stop()
            self.agent = None

    def tell(self, message: TenantChanged | PolicyDecided) -> None:
        """Write an account or a policy as the controller does."""
        topic = (
            contracts.TOPIC_TENANT_CHANGED
            if isinstance(message, TenantChanged)
            else contracts.TOPIC_POLICY_DECIDED
        )
        self.log.send(topic, message.tenant, contracts.encode(message))

    def adapter(self, tenant: str = "acme", version: int = 1, **changes: Any) -> AdapterReference:
        """Store an adapter and name it."""
        path = self.settings.home / "made.safetensors"
        path.write_bytes(f"{tenant}@{version}".encode())
        stored = self.store.put_file(tenant, f"adapters/{version}.safetensors", path)
        fields: dict[str, Any] = {
            "tenant": tenant,
            "version": version,
            "uri": stored.uri,
            "sha256": stored.sha256,
            "target_sha256": TARGET,
            "turbo_sha256": TURBO,
            "rank": 8,
        }
        return AdapterReference(**(fields | changes))

    def report(self) -> EngineTelemetry | None:
        """The newest telemetry."""
        for record in self.telemetry.poll(0.0):
            assert record.key == ENGINE
            assert record.value is not None
            self.reports.append(contracts.decode(record.value, EngineTelemetry))
        return self.reports[-1] if self.reports else None

    def acknowledged(self, tenant: str = "acme") -> int | None:
        """Policy version in force, as telemetry says."""
        report = self.report()
        return report.acknowledged.get(tenant) if report is not None else None

    def acknowledges(self, policy_version: int, tenant: str = "acme") -> bool:
        """Whether a tenant's policy is in force."""
        return self.acknowledged(tenant) == policy_version

    def admitted(self, tenant: str = "acme") -> int:
        """Version that the tenant's requests are admitted with."""
        return self.directory.admit(tenant, None, None).version

    def adapter_files(self) -> list[Path]:
        """Adapters fetched to home."""
        return sorted((self.settings.home / "endpoint" / "adapters").glob("*.safetensors"))

    def refusal(self, tenant: str = "acme") -> tuple[int, str] | None:
        """Policy version refused and why, as telemetry says."""
        report = self.report()
        if report is None or tenant not in report.refused:
            return None
        return report.refused_policies[tenant], report.refused[tenant]

    def knows(self, key: str) -> bool:
        """Whether the endpoint would serve a key."""
        try:
            self.directory.authenticate(f"Bearer {key}")
        except EndpointError:
            return False
        return True

    def saved(self) -> dict[str, Any]:
        """The state file."""
        path = self.settings.home / "endpoint" / "state.json"
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return state


def next_report(stack: Stack, count: int = 2) -> EngineTelemetry:
    """A report that was begun after this call."""
    stack.report()
    seen = len(stack.reports)
    eventually(lambda: stack.report() and len(stack.reports) >= seen + count)
    return stack.reports[-1]
