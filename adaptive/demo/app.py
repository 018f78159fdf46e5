"""Composition root of `adaptive demo`: starts everything on loopback, plays traffic, probes, reports."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from filelock import FileLock, Timeout
from rich.console import Console

from adaptive.demo import report, view
from adaptive.demo.client import AdminClient, EndpointClient, RequestFailedError
from adaptive.demo.probe import ArmResult, probe
from adaptive.demo.progress import DemoProgress
from adaptive.demo.traffic import TrafficPlayer
from adaptive.internal_key import internal_key
from adaptive.up.stack import Stack, StackError
from adaptive.workloads import load
from learners.status import read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from adaptive.contracts import Arm
    from adaptive.settings import Settings

TENANTS: Final = {"tools": "near turbo's mix", "format": "far from it"}
"""Workload name (also the tenant's id) and what it stands for."""
CONCURRENCY: Final = 2
"""Clients per tenant."""
MAX_TOKENS: Final = 96
PROBE_SHARE: Final = 0.35
"""Of the time that is left once everything runs."""
LEAST_PROBES: Final = 2
HOME: Final = "demo-home"
"""State of the run, beside the report."""
_MARKER: Final = ".adaptive-demo"
_FRAME_SECONDS: Final = 1.0
_PIN_SECONDS: Final = 30.0


class DemoError(Exception):
    """The demo cannot run; the message says why and what to do."""


@dataclasses.dataclass(slots=True)
class _Tenant:
    name: str
    key: str
    player: TrafficPlayer
    state: dict[str, Any]


class Demo:
    """One bounded run."""

    def __init__(self, settings: Settings, minutes: float, output: Path, console: Console) -> None:
        home = _fresh_home(settings, output.parent / HOME)
        self._settings = _demo_settings(settings, home)
        self._deadline = time.monotonic() + 60 * minutes
        self._output = output
        self._console = console
        self._progress = DemoProgress(console)
        self._started = time.monotonic()
        self._endpoint_url = f"http://{settings.host}:{settings.endpoint_port}"

    def run(self) -> int:
        """Run to the end; 0 only if nothing failed."""
        with self._stack() as stack:
            admin = AdminClient(
                f"http://{self._settings.host}:{self._settings.control_port}", stack.admin_key
            )
            tenants = [self._tenant(name, admin) for name in TENANTS]
            left = self._deadline - time.monotonic()
            self._traffic(stack, tenants, admin, time.monotonic() + (1 - PROBE_SHARE) * left)
            crashed = stack.crashes()
            for tenant in tenants:
                self._pin(tenant, admin)
            results = self._probe(tenants)
            versions = {tenant.name: admin.versions(tenant.name) for tenant in tenants}
            with contextlib.closing(self._client(tenants[0].key)) as client:
                engine = client.engine()
            crashed += [name for name in stack.crashes() if name not in crashed]
            admin.close()
        return self._finish(tenants, results, versions, engine, crashed)

    @contextlib.contextmanager
    def _stack(self) -> Iterator[Stack]:
        """The whole service, with progress while it starts."""
        with self._progress.messages("starting") as say:
            stack = Stack(self._settings, progress=say)
            stack.start()
        try:
            yield stack
        finally:
            stack.stop()

    def _client(self, key: str) -> EndpointClient:
        name = Path(self._settings.model).name
        return EndpointClient(self._endpoint_url, key, name, internal_key(self._settings))

    def _tenant(self, name: str, admin: AdminClient) -> _Tenant:
        key = admin.create_tenant(name)
        player = TrafficPlayer(
            lambda: self._client(key), load(name).traffic, concurrency=CONCURRENCY, max_tokens=MAX_TOKENS
        )
        return _Tenant(name, key, player, {})

    def _traffic(self, stack: Stack, tenants: list[_Tenant], admin: AdminClient, until: float) -> None:
        """Play both tenants' traffic while the learners follow it."""
        _wait_for_keys([self._client(tenant.key) for tenant in tenants])
        began = time.monotonic()
        for tenant in tenants:
            tenant.player.start()
        with self._progress.tables() as show:
            while time.monotonic() < until:
                if stack.failure is not None:
                    raise stack.failure
                for tenant in tenants:
                    tenant.state = admin.tenant(tenant.name)
                show("traffic and learning", *self._frame(tenants, began))
                time.sleep(_FRAME_SECONDS)
            for tenant in tenants:
                tenant.player.stop()
            pause = self._settings.home / "learner" / "pause"
            pause.parent.mkdir(parents=True, exist_ok=True)
            pause.touch()
            while not self._learner_paused():
                show("waiting for the learner to pause", *self._frame(tenants, began))
                time.sleep(_FRAME_SECONDS)

    def _learner_paused(self) -> bool:
        status = read_status(self._settings.home / "learner" / "status.json")
        return status is None or status.paused or time.monotonic() > self._deadline

    def _pin(self, tenant: _Tenant, admin: AdminClient) -> None:
        """Hold the tenant's drafter still, so that one version makes all of the adapted numbers."""
        admin.pin(tenant.name, admin.tenant(tenant.name)["champion"] or 0)
        deadline = time.monotonic() + _PIN_SECONDS
        while not _in_force(admin.tenant(tenant.name)):
            if time.monotonic() > deadline:
                raise DemoError(f"no engine acknowledged the policy of {tenant.name}: see the logs of serve")
            time.sleep(0.2)

    def _probe(self, tenants: list[_Tenant]) -> dict[str, dict[Arm, ArmResult]]:
        """All arms on the same prompts, learning paused, nothing else running."""
        results: dict[str, dict[Arm, ArmResult]] = {}
        for number, tenant in enumerate(tenants):
            left = self._deadline - time.monotonic()
            deadline = time.monotonic() + left / (len(tenants) - number)
            client = self._client(tenant.key)
            with self._progress.messages(f"probing {tenant.name}") as say:
                results[tenant.name] = probe(
                    client,
                    load(tenant.name).probe,
                    max_tokens=MAX_TOKENS,
                    deadline=deadline - 10,
                    minimum=LEAST_PROBES,
                    progress=_progress(say, tenant.name),
                )
            client.close()
        return results

    def _frame(self, tenants: list[_Tenant], began: float) -> tuple[float, dict[str, dict[str, Any]]]:
        seconds = time.monotonic() - began
        rows = {
            tenant.name: {
                "requests": tenant.player.served,
                "failed": tenant.player.failed,
                "tokens_per_second": tenant.player.output_tokens / seconds,
                "state": tenant.state,
            }
            for tenant in tenants
        }
        return self._deadline - time.monotonic(), rows

    def _finish(
        self,
        tenants: list[_Tenant],
        results: Mapping[str, Mapping[Arm, ArmResult]],
        versions: Mapping[str, list[dict[str, Any]]],
        engine: Mapping[str, Any],
        crashed: list[str],
    ) -> int:
        failed = sum(tenant.player.failed for tenant in tenants)
        reports = {name: report.tenant_report(arms, versions[name]) for name, arms in results.items()}
        document = {
            "target": Path(self._settings.model).name,
            "tenants": reports,
            "requests_served": sum(tenant.player.served for tenant in tenants),
            "requests_failed": failed,
            "swap_pause_ms": report.pauses_report(engine["pauses_ms"]),
            "duration_seconds": time.monotonic() - self._started,
        }
        report.write(self._output, document)
        self._console.print(view.summary(reports))
        self._console.print(f"report: {self._output}")
        for tenant in tenants:
            for error in tenant.player.errors[:3]:
                self._console.print(f"{tenant.name}: {error}", style="red", markup=False)
        for name in crashed:
            self._console.print(
                f"[red]{name} crashed during the run: see {self._settings.home}/logs/{name}.log"
            )
        served = sum(tenant.player.served for tenant in tenants)
        if not served:
            self._console.print("[red]no request of the traffic was served: allow more --minutes")
        return 1 if failed or crashed or not served else 0


def _fresh_home(settings: Settings, home: Path) -> Path:
    """An empty state directory, so that every run starts from turbo; prepared models are shared.

    Raises:
        DemoError: the directory exists and is not a demo's.
    """
    if home.exists():
        if not (home / _MARKER).exists():
            raise DemoError(f"{home} exists and was not made by a demo: choose another --output")
        shutil.rmtree(home)
    home.mkdir(parents=True)
    (home / _MARKER).touch()
    models = (settings.home / "models").resolve()
    models.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(models)
    return home.resolve()


def _demo_settings(settings: Settings, home: Path) -> Settings:
    """The operator's settings, but none of the operator's state: the demo keeps to its own home."""
    state = settings.model_copy(update={"home": home})
    return settings.model_copy(
        update={
            "home": home,
            "log_url": state.default_log_url,
            "store_url": state.default_store_url,
            "database_url": state.default_database_url,
            "tracking_url": state.default_tracking_url,
            "acceptance_details": True,
        }
    )


def _in_force(tenant: Mapping[str, Any]) -> bool:
    """Whether the engine acknowledged the tenant's policy; none that reported yet has not."""
    engines = tenant["engines"]
    return bool(engines) and all(engine["current"] for engine in engines)


def _progress(update: Callable[[str], None], tenant: str) -> Callable[[int, int], None]:
    return lambda done, total: update(f"probing {tenant}: {done} of at most {total} prompts, three arms each")


def _wait_for_keys(clients: list[EndpointClient], seconds: float = 30.0) -> None:
    """Until the endpoint knows the keys that the controller just made."""
    deadline = time.monotonic() + seconds
    for client in clients:
        while not client.authorized():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the endpoint did not learn of a new key within {seconds:.0f} s: see the logs of "
                    "serve and control"
                )
            time.sleep(0.2)
        client.close()


def run(settings: Settings, minutes: float, output: Path) -> int:
    """Run the demo; the exit code."""
    console = Console()
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Taken before the last run's state is removed: it may still be running.
        with FileLock(output.parent / f"{HOME}.lock", timeout=0):
            return Demo(settings, minutes, output, console).run()
    except Timeout:
        console.print(
            f"[red]another demo is running in {output.parent}: wait for it, or choose another --output"
        )
        return 1
    except (DemoError, StackError, RequestFailedError, TimeoutError, httpx.HTTPError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False)
        console.print(f"logs: {output.parent / HOME / 'logs'}")
        return 1
