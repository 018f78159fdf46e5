"""Composition root of `adaptive serve`: vLLM's OpenAI server behind the gateway, the agent beside it."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import structlog

from adaptive import log
from adaptive.endpoint import environment
from adaptive.endpoint.agent import Agent
from adaptive.endpoint.arguments import vllm_arguments
from adaptive.endpoint.gateway import Gateway
from adaptive.endpoint.identity import Identity, identify
from adaptive.endpoint.internal import add_engine_route
from adaptive.endpoint.metrics import TelemetryCollector
from adaptive.endpoint.observer import EngineObserver
from adaptive.endpoint.prediction import target_tokenizer
from adaptive.endpoint.tenants import TenantDirectory
from adaptive.engine import compatibility
from adaptive.internal_key import internal_key
from adaptive.lineage import turbo_lineage
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
        IncompatibleVllmError: the installed vLLM is not the one this was written for.
    """
    environment.preload_openmp()
    environment.set_defaults()
    environment.pass_on_secrets(settings)
    log.configure("endpoint")
    identity = identify(settings)
    arguments = vllm_arguments(settings, identity, vllm_flags)

    import uvloop  # noqa: PLC0415  vLLM and what it brings are imported only after the environment is set
    from vllm.entrypoints.launchers.cli_args import (  # noqa: PLC0415
        make_arg_parser,
        validate_parsed_serve_args,
    )
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    compatibility.check(compatibility.SERVER_SYMBOLS)
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    validate_parsed_serve_args(parsed)
    uvloop.run(_serve(settings, identity, parsed))


async def _serve(settings: Settings, identity: Identity, parsed: Any) -> None:
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state  # noqa: PLC0415
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client  # noqa: PLC0415
    from vllm.entrypoints.launchers.app import build_app  # noqa: PLC0415
    from vllm.entrypoints.launchers.launcher import serve_http, setup_server  # noqa: PLC0415
    from vllm.v1.metrics.prometheus import get_prometheus_registry  # noqa: PLC0415

    from adaptive.engine.logits import accept_undrafted  # noqa: PLC0415  imports torch

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt("terminated")

    # Until the HTTP server installs its own handlers, a signal ends the start-up.
    signal.signal(signal.SIGTERM, interrupt)
    _, sock = setup_server(parsed, reuse_port=False)
    directory = TenantDirectory()
    async with build_async_engine_client(parsed) as client:
        # The engine's client has read it by now and logs ids; the server's own logger would log parameters,
        # among them stop strings, schemas and predictions.
        parsed.enable_log_requests = False
        accept_undrafted(client.input_processor)
        tasks = await client.get_supported_tasks()
        app = build_app(parsed, tasks, client.model_config)
        # Outermost, over the stack that vLLM already built: nothing in it sees an unauthenticated request.
        gateway = Gateway(
            app.middleware_stack or app.build_middleware_stack(),
            directory=directory,
            internal_key=internal_key(settings),
            feature_share=settings.feature_share,
            tokenize=target_tokenizer(identity.target),
            max_prediction_tokens=client.model_config.max_model_len,
            acceptance_details=settings.acceptance_details,
            always_undrafted=bool(client.model_config.get_diff_sampling_param().get("min_p")),
        )
        app.middleware_stack = gateway
        EngineObserver(client, gateway)
        add_engine_route(app, client, directory, gateway.limiter)
        await init_app_state(client, app.state, parsed, tasks)
        agent = Agent(
            settings,
            AsyncEngine(client, asyncio.get_running_loop()),
            directory,
            lambda: open_transport(settings.resolved_log_url, kafka=settings),
            engine_id=f"{settings.host}:{settings.endpoint_port}",
            target_sha256=identity.target_sha256,
            turbo_sha256=identity.turbo_sha256,
            turbo_tenants=turbo_lineage(identity.turbo),
        )
        agent.start()
        # Into the registry that vLLM's /metrics renders.
        get_prometheus_registry().register(TelemetryCollector(lambda: agent.latest, settings.metric_tenants))
        structlog.get_logger("endpoint").info(
            "serving", host=settings.host, port=settings.endpoint_port, model=identity.name
        )
        try:
            shutdown = await serve_http(app, sock=sock, **_http_options(parsed))
        finally:
            await asyncio.get_running_loop().run_in_executor(None, agent.stop)
    try:
        await shutdown
    finally:
        sock.close()


def _http_options(parsed: Any) -> dict[str, Any]:
    """Options of the HTTP server, as vLLM's own launcher takes them from the same flags."""
    from vllm import envs  # noqa: PLC0415
    from vllm.entrypoints.launchers.utils.server_utils import get_uvicorn_log_config  # noqa: PLC0415

    names = (
        *("host", "port", "enable_ssl_refresh", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
        *("ssl_cert_reqs", "ssl_ciphers", "h11_max_incomplete_event_size", "h11_max_header_count"),
    )
    options = {name: getattr(parsed, name) for name in names}
    log_config = get_uvicorn_log_config(parsed)
    if log_config is not None:
        options["log_config"] = log_config
    return options | {
        "log_level": parsed.uvicorn_log_level,
        "access_log": False,
        "timeout_keep_alive": envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
    }
