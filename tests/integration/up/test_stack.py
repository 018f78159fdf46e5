"""The supervisor with small roles of the tests' own: crashes, drains, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from itertools import pairwise
from pathlib import Path

import pytest

from adaptive.settings import Settings
from adaptive.up import sessions
from adaptive.up.environment import child_environment, variable
from adaptive.up.roles import Role, standard_roles
from adaptive.up.stack import Stack, StackError
from deploy.kafka.broker import free_port
from tests.waiting import eventually

SLEEPER = "import time; print('works', flush=True); time.sleep(600)"
FAMILY = """
    # Starts a child in its own process group and a grandchild without a parent, as Ray's actors are.
    import os, subprocess, sys, time
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(sleep, process_group=0)
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({sleep!r})"])
    print("works", flush=True)
    time.sleep(600)
"""
DRAINS = """
    import pathlib, signal, sys, time
    def drain(*_):
        time.sleep(0.3)
        pathlib.Path("drained").touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, drain)
    print("works", flush=True)
    time.sleep(600)
"""
STUBBORN = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("works", flush=True)
    time.sleep(600)
"""
CRASHES = "import sys; print('out of luck', file=sys.stderr); sys.exit(3)"


def role(home: Path, name: str, code: str, **options: object) -> Role:
    """A role that is ready once it has printed `works`."""
    log = home / "logs" / f"{name}.log"

    def ready(_started_at: float) -> bool:
        return log.exists() and "works" in log.read_text()

    values: dict[str, object] = {"start_seconds": 30.0, "drain_seconds": 10.0} | options
    return Role(name, (sys.executable, "-c", textwrap.dedent(code)), ready, **values)  # type: ignore[arg-type]  # by name


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of an empty home, with the test's directory as working directory."""
    monkeypatch.chdir(tmp_path)
    return Settings(home=tmp_path / "home")


def test_roles_start_log_and_stop(settings: Settings) -> None:
    """Inside the context every role runs with its output in its log; afterwards none does."""
    lines: list[str] = []
    roles = [role(settings.home, name, SLEEPER) for name in ("one", "two")]
    with Stack(settings, roles=roles, progress=lines.append) as stack:
        assert all(process.running for process in stack.processes.values())
        assert (settings.home / "logs" / "one.log").read_text() == "works\n"
        assert "waiting for one, two" in lines[0]
        assert stack.admin_key.startswith("adm_")
        assert stack.admin_key_is_new
        pids = [process.pid for process in stack.processes.values()]
    assert not any(process.running for process in stack.processes.values())
    assert not any(sessions.members(pid) for pid in pids)
    assert stack.crashes() == []
    stack.stop()


def test_a_crashed_role_is_started_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed learner comes back by itself, the others go on, and nothing of the old one is left."""
    monkeypatch.setattr("adaptive.up.stack.FIRST_BACKOFF_SECONDS", 0.3)
    roles = [role(settings.home, "learn", FAMILY), role(settings.home, "serve", SLEEPER, restart=False)]
    with Stack(settings, roles=roles) as stack:
        learn, serve = stack.processes["learn"], stack.processes["serve"]
        first, serving = learn.pid, serve.pid
        assert len(sessions.members(first)) == 3
        os.kill(first, signal.SIGKILL)
        eventually(lambda: learn.pid != first and learn.running)
        assert sessions.members(first) == set()
        eventually(lambda: len(sessions.members(learn.pid)) == 3)
        second = learn.pid
        learn.kill()
        assert sessions.members(second) == set()
        eventually(lambda: learn.restarts == 2 and learn.running)
        assert (serve.pid, serve.restarts) == (serving, 0)
        assert stack.crashes() == ["learn", "learn"]
        assert stack.failure is None


def test_crashes_in_a_row_come_slower_and_slower(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before a restart doubles, so a role that cannot work does not eat the machine."""
    monkeypatch.setattr("adaptive.up.stack.FIRST_BACKOFF_SECONDS", 0.4)
    starts = settings.home / "starts"
    code = f"""
        import pathlib, time
        path = pathlib.Path({str(starts)!r})
        first = not path.exists()
        with path.open("a") as file:
            file.write(f"{{time.monotonic()}}\\n")
        print("works", flush=True)
        time.sleep(1.0 if first else 0)
    """
    with Stack(settings, roles=[role(settings.home, "learn", code)]):
        eventually(lambda: len(starts.read_text().split()) >= 4)
    times = [float(line) for line in starts.read_text().split()]
    pauses = [later - earlier for earlier, later in pairwise(times[1:])]
    assert pauses[1] > pauses[0] * 1.4
    assert pauses[0] >= 0.8


def test_the_crash_of_the_endpoint_is_the_failure_of_the_stack(settings: Settings) -> None:
    """A role that may not be restarted ends the service, with its exit code and last lines."""
    code = "print('works', flush=True); import time; time.sleep(1); raise SystemExit('no memory left')"
    with Stack(settings, roles=[role(settings.home, "serve", code, restart=False)]) as stack:
        assert stack.wait(15)
        message = str(stack.failure)
    assert "serve ended with exit code 1" in message
    assert "no memory left" in message
    assert stack.crashes() == ["serve"]


def test_a_role_that_does_not_start_stops_the_others(settings: Settings) -> None:
    """The error shows the end of its log, and what had started is gone."""
    roles = [role(settings.home, "control", SLEEPER), role(settings.home, "learn", CRASHES)]
    stack = Stack(settings, roles=roles)
    with pytest.raises(
        StackError, match=r"(?s)learn ended with exit code 3; end of .*learn\.log:\nout of luck"
    ):
        stack.start()
    assert not any(process.running for process in stack.processes.values())


def test_a_role_that_never_gets_ready_is_given_up(settings: Settings) -> None:
    """After its time to start the stack says which role it waited for."""
    roles = [role(settings.home, "serve", "import time; time.sleep(600)", start_seconds=1.0)]
    with pytest.raises(StackError, match="serve was not ready after"):
        Stack(settings, roles=roles).start()


def test_stopping_lets_roles_drain(settings: Settings, tmp_path: Path) -> None:
    """SIGTERM comes first, and a role that uses it to finish its work gets the time."""
    with Stack(settings, roles=[role(settings.home, "serve", DRAINS)]) as stack:
        pass
    assert (tmp_path / "drained").exists()
    assert stack.processes["serve"].exit_code == 0


def test_a_role_that_does_not_drain_is_killed(settings: Settings) -> None:
    """SIGTERM that is ignored is followed by SIGKILL after the time to drain."""
    with Stack(settings, roles=[role(settings.home, "serve", STUBBORN, drain_seconds=0.5)]) as stack:
        began = time.monotonic()
    assert time.monotonic() - began < 8
    assert stack.processes["serve"].exit_code == -signal.SIGKILL


def test_nothing_a_role_started_outlives_the_stack(settings: Settings) -> None:
    """Children in other process groups and orphaned grandchildren end too."""
    with Stack(settings, roles=[role(settings.home, "learn", FAMILY)]) as stack:
        session = stack.processes["learn"].pid
        assert len(sessions.members(session)) == 3
    assert sessions.members(session) == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_roles_end_with_a_supervisor_that_is_killed(settings: Settings, number: signal.Signals) -> None:
    """Even a supervisor that can do nothing any more leaves no role behind."""
    code = f"""
        import sys, time
        from pathlib import Path
        from adaptive.settings import Settings
        from adaptive.up.roles import Role
        from adaptive.up.stack import Stack
        home = Path({str(settings.home)!r})
        command = (sys.executable, "-c", {SLEEPER!r})
        stack = Stack(Settings(home=home), roles=[Role("serve", command, lambda _: True)])
        stack.start()
        print(stack.processes["serve"].pid, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as supervisor:
        assert supervisor.stdout is not None
        session = int(supervisor.stdout.readline())
        eventually(lambda: "works" in (settings.home / "logs" / "serve.log").read_text())
        supervisor.send_signal(number)
    eventually(lambda: not sessions.members(session))


def test_two_stacks_cannot_share_a_home(settings: Settings) -> None:
    """The second is refused with a remedy and leaves the first alone; afterwards the home is free again."""
    with Stack(settings, roles=[role(settings.home, "one", SLEEPER)]) as stack:
        with pytest.raises(StackError, match=r"another `adaptive up` runs.*--home"):
            Stack(settings, roles=[role(settings.home, "one", SLEEPER)]).start()
        assert stack.processes["one"].running
    with Stack(settings, roles=[role(settings.home, "one", SLEEPER)]):
        pass
    assert (settings.home / "logs" / "one.log.1").exists()


def test_a_taken_port_is_named_before_anything_starts(settings: Settings) -> None:
    """The error names role, address and flag."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stack = Stack(
            settings, roles=[role(settings.home, "serve", SLEEPER, port=port, remedy="--endpoint-port")]
        )
        with pytest.raises(StackError, match=rf"serve cannot listen on 127\.0\.0\.1:{port}.*--endpoint-port"):
            stack.start()
    assert stack.processes == {}


def test_a_model_that_cannot_be_prepared_stops_the_start(settings: Settings) -> None:
    """The line of `adaptive models prepare` reaches the user."""
    ports = {"endpoint_port": free_port(), "control_port": free_port()}
    unknown = settings.model_copy(update={"model": "smollm3", **ports})
    with pytest.raises(StackError, match="unknown model 'smollm3'"):
        Stack(unknown).start()


def test_children_read_the_settings_of_the_supervisor(settings: Settings) -> None:
    """Flags, secrets, lists and paths survive the way through the environment unchanged."""
    chosen = Settings(
        home=settings.home,
        admin_key="adm_secret",
        capture=False,
        learning_rate=3e-4,
        turbo=Path("turbo"),
    ).model_copy(update={"tracking_url": "http://127.0.0.1:5000"})
    environment = child_environment(chosen)
    code = "from adaptive.settings import Settings; print(Settings().model_dump_json(exclude={'admin_key'}))"
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    expected = chosen.model_copy(update={"turbo": Path("turbo").resolve()})
    assert shown.strip() == expected.model_dump_json(exclude={"admin_key"})
    assert environment[variable(Settings, "admin_key")] == "adm_secret"
    for started in standard_roles(chosen, 5000):
        assert "adm_secret" not in " ".join(started.command)
