"""Parts of the composition root that need no vLLM."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI

from adaptive.endpoint import environment
from adaptive.endpoint.app import AsyncEngine
from adaptive.endpoint.internal import add_engine_route
from adaptive.endpoint.limits import Limiter
from adaptive.endpoint.tenants import TenantDirectory
from tests.unit.endpoint.asgi import call
from tests.unit.endpoint.records import account, policy

if TYPE_CHECKING:
    from pathlib import Path


class Client:
    """Stands for vLLM's async client; answers for two ranks."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109  vLLM's signature
        args: tuple[Any, ...] = (),
    ) -> Any:
        """Answer, or fail as a worker would."""
        await asyncio.sleep(0)
        self.calls.append((method, args))
        if method == "broken":
            raise ValueError("the worker failed")
        return [{"rank": 0, "timeout": timeout}, {"rank": 1}]


def test_rpcs_run_on_the_loop_and_return_rank_0() -> None:
    """The agent's thread calls into the server's event loop; a worker's error reaches it."""
    client = Client()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        engine = AsyncEngine(client, loop)
        with ThreadPoolExecutor(1) as agent:
            result = await loop.run_in_executor(agent, engine.call, "stage_adapter", "acme", 1)
            assert result == {"rank": 0, "timeout": 60.0}
            with pytest.raises(ValueError, match="the worker failed"):
                await loop.run_in_executor(agent, engine.call, "broken")

    asyncio.run(serve())
    assert client.calls == [("stage_adapter", ("acme", 1)), ("broken", ())]


def test_the_engine_route_shows_rank_0_and_the_tenants() -> None:
    """GET /internal/engine is the worker's report and who is served how; it is not in the schema."""
    app = FastAPI()
    directory, limiter = TenantDirectory(), Limiter()
    acme = account("acme")
    directory.set_account("acme", acme)
    directory.set_account("other", account("other"))
    directory.set_policy("acme", policy("acme", 7), 3)
    limiter.admit(acme)
    add_engine_route(app, Client(), directory, limiter)
    shown = call(app, "/internal/engine", method="GET").json()
    assert (shown["rank"], shown["timeout"]) == (0, None)
    assert shown["tenants"]["acme"] == {
        "state": "active",
        "learn": True,
        "keys": 1,
        "policy_version": 7,
        "version": 3,
        "max_lookahead": 4,
        "requests_in_flight": 1,
        "requests_per_minute": None,
        "tokens_per_minute": None,
        "concurrent_requests": None,
    }
    assert shown["tenants"]["other"]["requests_in_flight"] == 0
    assert acme.key_hashes[0] not in str(shown)
    assert "/internal/engine" not in app.openapi()["paths"]


def test_the_environment_is_offline_and_loads_our_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """No download, no usage report; what an operator set stays."""
    monkeypatch.setattr(os, "environ", {"TOKENIZERS_PARALLELISM": "true", "VLLM_API_KEY": "open"})
    environment.set_defaults()
    assert "VLLM_API_KEY" not in os.environ  # vLLM would want it in place of the tenants' keys
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
    assert os.environ["VLLM_PLUGINS"] == "adaptive"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, list[str], dict[str, str]]]:
    """What `execve` is called with, in an environment whose prefix has Intel's OpenMP."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    calls: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "adaptive.cli", "serve", "--slots", "4"])
    monkeypatch.setattr(os, "environ", {"LD_PRELOAD": "libother.so"})
    monkeypatch.setattr(os, "execve", lambda *arguments: calls.append(arguments))
    return calls


def test_openmp_is_preloaded_by_starting_again(
    executed: list[tuple[str, list[str], dict[str, str]]], tmp_path: Path
) -> None:
    """The same command line, with the library before whatever was preloaded."""
    environment.preload_openmp()
    ((program, arguments, variables),) = executed
    assert program == sys.executable
    assert arguments == [sys.executable, "-m", "adaptive.cli", "serve", "--slots", "4"]
    assert variables["LD_PRELOAD"] == f"{tmp_path}/lib/libiomp5.so libother.so"


def test_openmp_is_preloaded_once(
    executed: list[tuple[str, list[str], dict[str, str]]], tmp_path: Path
) -> None:
    """A process that has it goes on; so does one whose environment has no such library."""
    os.environ["LD_PRELOAD"] = f"{tmp_path}/lib/libiomp5.so"
    environment.preload_openmp()
    del os.environ["LD_PRELOAD"]
    (tmp_path / "lib" / "libiomp5.so").unlink()
    environment.preload_openmp()
    assert executed == []
