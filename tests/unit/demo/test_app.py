"""The demo from start to end, on a fake service."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from rich.console import Console

from adaptive.contracts import Arm
from adaptive.demo import app as app_module
from adaptive.demo.client import RequestFailedError
from adaptive.settings import Settings
from adaptive.up.environment import child_environment
from adaptive.up.stack import StackError
from adaptive.workloads.prompt import Workload
from learners.status import LearnerStatus, write_status
from tests.unit.demo.prompts import answer, prompts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from adaptive.demo.client import Completion

MINUTES = 0.01


class Service:
    """What the demo starts, calls and stops; a test sets what goes wrong."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.events: list[str] = []
        self.crashed: list[str] = []
        self.failure: StackError | None = None
        self.refuse_start = False
        self.keys_known_at = 0.0
        self.fail: Callable[[Arm | None], str | None] = lambda _: None
        self.asked: list[Arm | None] = []
        self.champions: dict[str, int] = {}
        self.pinned: dict[str, int] = {}
        self.policies_until_current = 0
        self.engines = 1
        self.paused_while_probing: list[bool] = []

    # -- the stack --

    def stack(self, settings: Settings, *, progress: Callable[[str], None]) -> Service:
        """In place of Stack."""
        self.settings = settings
        progress("waiting for nothing")
        return self

    admin_key = "admin"

    def start(self) -> None:
        """Start, or not."""
        self.events.append("start")
        self.asked.clear()
        if self.refuse_start:
            raise StackError("port 8000 is taken: set ADAPTIVE_ENDPOINT_PORT")

    def stop(self) -> None:
        """Stop."""
        self.events.append("stop")

    def crashes(self) -> list[str]:
        """Roles that crashed."""
        return list(self.crashed)

    # -- the admin API --

    def create_tenant(self, tenant: str) -> str:
        """A key."""
        self.events.append(f"create {tenant}")
        return f"{tenant}-key"

    def tenant(self, tenant: str) -> dict[str, Any]:
        """A state."""
        current = self.policies_until_current <= 0
        if tenant in self.pinned:
            self.policies_until_current -= 1
        return {
            "id": tenant,
            "champion": self.champions.get(tenant),
            "engines": [{"current": current}] * self.engines,
            "arms": [],
            "learning": None,
        }

    def pin(self, tenant: str, version: int) -> None:
        """Hold a version, after the traffic."""
        assert set(self.asked) <= {None}
        self.pinned[tenant] = version

    def versions(self, tenant: str) -> list[dict[str, Any]]:
        """One version for the far tenant."""
        if tenant != "format":
            return []
        return [
            {
                "version": 1,
                "status": "champion",
                "holdout_tau": {"turbo": 2.0, "challenger": 2.5},
                "gain_lower": 0.1,
                "tokens_trained": 4000,
                "training_seconds": 12.5,
            }
        ]

    # -- the endpoint --

    def authorized(self) -> bool:
        """Keys are known after a moment."""
        return time.monotonic() >= self.keys_known_at

    def complete(self, _messages: Any, *, arm: Arm | None = None, **_: Any) -> Completion:
        """Answer."""
        self.asked.append(arm)
        if arm is not None:
            assert self.settings is not None
            self.paused_while_probing.append((self.settings.home / "learner" / "pause").exists())
        time.sleep(0.002)
        reason = self.fail(arm)
        if reason is not None:
            raise RequestFailedError(reason)
        return answer(tokens=20 if arm is Arm.ADAPTER else 10, seconds=0.5)

    def engine(self) -> dict[str, Any]:
        """Its pauses."""
        return {"pauses_ms": [1.0, 3.0]}

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service in place of the real one, and frames that take no time."""
    made = Service()
    monkeypatch.setattr(app_module, "Stack", made.stack)
    monkeypatch.setattr(app_module, "AdminClient", lambda *_: made)
    monkeypatch.setattr(app_module, "EndpointClient", lambda *_: made)
    monkeypatch.setattr(app_module, "load", lambda name: Workload(name, prompts(4), prompts(3)))
    monkeypatch.setattr(app_module, "_FRAME_SECONDS", 0.01)
    monkeypatch.setattr(app_module, "_PIN_SECONDS", 0.5)
    return made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, dict[str, Any], str]]:
    """Run the demo; exit code, report (empty if there is none) and what was printed."""
    console = Console(width=200, record=True, force_terminal=False)
    monkeypatch.setattr(app_module, "Console", lambda: console)
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ADAPTIVE_") or name == "MLFLOW_TRACKING_URI":
            monkeypatch.delenv(name)
    output = tmp_path / "runs" / "demo" / "report.json"

    def start() -> tuple[int, dict[str, Any], str]:
        code = app_module.run(Settings(home=tmp_path / "state", model="tiny"), MINUTES, output)
        report = json.loads(output.read_text()) if output.exists() else {}
        return code, report, console.export_text()

    return start


def test_a_run_leaves_a_report(service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]) -> None:
    """Every field that scripts read is there, for both tenants; nothing failed, so the exit code is 0."""
    code, report, printed = run()
    assert code == 0
    assert set(report) == {
        "target",
        "tenants",
        "requests_served",
        "requests_failed",
        "swap_pause_ms",
        "duration_seconds",
    }
    assert report["target"] == "tiny"
    assert set(report["tenants"]) == {"tools", "format"}
    far = report["tenants"]["format"]
    assert (far["turbo"]["tokens_per_second"], far["adapted"]["tokens_per_second"]) == (20.0, 40.0)
    assert (far["tokens_trained"], far["training_seconds"]) == (4000, 12.5)
    assert report["requests_served"] > 0
    assert report["requests_failed"] == 0
    assert report["swap_pause_ms"] == {"p50": 2.0, "max": 3.0}
    assert 0 < report["duration_seconds"] < 30
    assert "format" in printed
    assert "report.json" in printed
    assert service.events == ["start", "create tools", "create format", "stop"]


def test_arms_are_probed_with_learning_paused(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]
) -> None:
    """Traffic forces nothing; probes force all three arms, after the pause file is there."""
    run()
    first_probe = next(number for number, arm in enumerate(service.asked) if arm is not None)
    assert None not in service.asked[first_probe:]
    assert set(service.asked[first_probe:]) == {Arm.OFF, Arm.TURBO, Arm.ADAPTER}
    assert all(service.paused_while_probing)


def test_the_learner_is_waited_for(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status file says when a training run has stopped; the deadline bounds the wait."""
    states = iter([False, False, True])
    monkeypatch.setattr(
        app_module,
        "read_status",
        lambda _: LearnerStatus(state="running", updated_at=0.0, paused=next(states)),
    )
    assert run()[0] == 0
    assert next(states, None) is None
    assert all(service.paused_while_probing)


def test_a_learner_that_never_pauses_does_not_hold_the_demo(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends after its minutes whatever the learner does."""
    start = service.start

    def with_status() -> None:
        start()
        assert service.settings is not None
        status = service.settings.home / "learner" / "status.json"
        status.parent.mkdir(parents=True)
        write_status(status, LearnerStatus(state="running", updated_at=0.0, paused=False))

    monkeypatch.setattr(service, "start", with_status)
    code, report, _ = run()
    assert code == 0
    assert report["duration_seconds"] < 30


def test_failed_requests_fail_the_demo(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]
) -> None:
    """The report is written all the same; the first errors are printed as they came, brackets included."""
    failures = iter(["HTTP 500: [/red] [bold]"])
    service.fail = lambda arm: next(failures, None) if arm is None else None
    code, report, printed = run()
    assert code == 1
    assert report["requests_failed"] == 1
    assert "HTTP 500: [/red] [bold]" in printed


def test_a_crash_fails_the_demo(service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]) -> None:
    """A role that was started again is a crash nevertheless; its log is named."""
    service.crashed = ["learn"]
    code, report, printed = run()
    assert code == 1
    assert report["requests_failed"] == 0
    assert "learn crashed during the run" in printed
    assert "logs/learn.log" in printed


def test_a_stack_that_does_not_start_is_one_line(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]
) -> None:
    """The reason and where the logs are; no report, no traceback."""
    service.refuse_start = True
    code, report, printed = run()
    assert (code, report) == (1, {})
    assert "the demo failed: port 8000 is taken: set ADAPTIVE_ENDPOINT_PORT" in printed
    assert "Traceback" not in printed


def test_a_stack_that_dies_ends_the_demo(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]
) -> None:
    """The endpoint's failure is the demo's, and the rest is stopped."""
    service.failure = StackError("serve ended with code 1: see serve.log")
    code, report, printed = run()
    assert (code, report) == (1, {})
    assert "serve ended with code 1" in printed
    assert service.events[-1] == "stop"


def test_a_failed_probe_ends_the_demo(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]
) -> None:
    """No report compares arms on different prompts."""
    service.fail = lambda arm: "HTTP 503" if arm is Arm.OFF else None
    code, report, printed = run()
    assert (code, report) == (1, {})
    assert "the demo failed: HTTP 503" in printed
    assert service.events[-1] == "stop"


def test_keys_are_waited_for(service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]) -> None:
    """A new key reaches the endpoint through the log; until then nothing is sent that would fail."""
    service.keys_known_at = time.monotonic() + 0.3
    code, report, _ = run()
    assert (code, report["requests_failed"]) == (0, 0)


def test_every_run_starts_from_turbo(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]], tmp_path: Path
) -> None:
    """State of an earlier run is gone; prepared models are shared with the user's home."""
    models = tmp_path / "state" / "models"
    models.mkdir(parents=True)
    (models / "tiny").touch()
    run()
    assert service.settings is not None
    home = service.settings.home
    assert home == (tmp_path / "runs" / "demo" / "demo-home").resolve()
    (home / "log.db").touch()
    run()
    assert not (home / "log.db").exists()
    assert (home / "models" / "tiny").exists()
    assert service.settings.acceptance_details is True


def test_a_directory_that_no_demo_made_is_left_alone(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]], tmp_path: Path
) -> None:
    """Whatever has the name of the demo's state stays as it is, and nothing is started."""
    theirs = tmp_path / "runs" / "demo" / "demo-home"
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    code, report, printed = run()
    assert (code, report, service.events) == (1, {}, [])
    assert "was not made by a demo: choose another --output" in printed
    assert [path.name for path in theirs.iterdir()] == ["thesis.txt"]


def test_the_users_home_beside_the_report_is_left_alone(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]], tmp_path: Path
) -> None:
    """A report at ~/x.json, with a directory `home` beside it."""
    theirs = tmp_path / "runs" / "demo" / "home"
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    assert run()[0] == 0
    assert (theirs / "thesis.txt").read_text() == "years of work"
    assert service.events[-1] == "stop"


def test_a_second_demo_is_refused_before_anything_is_deleted(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]], tmp_path: Path
) -> None:
    """The first one's state is in use; once it has ended, it is in nobody's way."""
    run()
    home = tmp_path / "runs" / "demo" / "demo-home"
    (home / "log.db").touch()
    service.events.clear()
    with FileLock(tmp_path / "runs" / "demo" / "demo-home.lock"):
        code, _, printed = run()
    assert (code, service.events) == (1, [])
    assert "another demo is running" in printed
    assert (home / "log.db").exists()
    assert run()[0] == 0
    assert not (home / "log.db").exists()


def test_the_operators_state_is_out_of_reach(
    service: Service,
    run: Callable[[], tuple[int, dict[str, Any], str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No process of the demo reads or writes the log, store, database or runs of the operator's service.

    What the children read is what counts: they inherit the environment and the settings file.
    """
    (tmp_path / "adaptive.yaml").write_text("store_url: s3://operator/store\nlog_url: kafka://operator\n")
    for name in ("ADAPTIVE_LOG_URL", "ADAPTIVE_STORE_URL", "ADAPTIVE_DATABASE_URL"):
        monkeypatch.setenv(name, "postgresql://operator")
    for name in ("ADAPTIVE_TRACKING_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "http://operator:5000")
    monkeypatch.setenv("ADAPTIVE_RANK", "7")
    assert run()[0] == 0
    assert service.settings is not None
    for name, value in child_environment(service.settings).items():
        monkeypatch.setenv(name, value)
    child = Settings()
    home = f"{tmp_path.resolve()}/runs/demo/demo-home"
    assert str(child.home) == home
    assert child.resolved_log_url == f"sqlite:///{home}/log.db"
    assert child.resolved_store_url == f"file://{home}/store"
    assert child.resolved_database_url == f"sqlite:///{home}/control.db"
    assert child.resolved_tracking_url == f"sqlite:///{home}/mlflow.db"
    assert child.rank == 7


def test_drafters_are_pinned_while_they_are_probed(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]]
) -> None:
    """The champion of the moment, or turbo; probes wait until the engine has it."""
    service.champions = {"format": 3}
    service.policies_until_current = 3
    assert run()[0] == 0
    assert service.pinned == {"tools": 0, "format": 3}
    assert service.policies_until_current <= 0


@pytest.mark.parametrize("engines", [0, 1])
def test_a_drafter_that_never_serves_is_not_probed(
    service: Service, run: Callable[[], tuple[int, dict[str, Any], str]], engines: int
) -> None:
    """An engine that does not obey, and one that never reported."""
    service.policies_until_current = 1_000_000
    service.engines = engines
    code, report, printed = run()
    assert (code, report) == (1, {})
    assert "no engine acknowledged the policy of tools" in printed
    assert set(service.asked) == {None}


@pytest.mark.usefixtures("service")
def test_a_demo_that_served_nothing_fails(
    run: Callable[[], tuple[int, dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No failure either, but nothing was learned from: the report's numbers mean nothing."""
    idle = SimpleNamespace(served=0, failed=0, output_tokens=0, errors=[], start=int, stop=int)
    monkeypatch.setattr(app_module, "TrafficPlayer", lambda *_, **__: idle)
    code, report, printed = run()
    assert (code, report["requests_served"]) == (1, 0)
    assert "no request of the traffic was served: allow more --minutes" in printed
