"""Composition root of `adaptive control`."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn
from fastapi import Depends, FastAPI
from sqlalchemy.exc import DBAPIError

from adaptive import log
from adaptive.contracts import TOPIC_POLICY_DECIDED, TOPIC_TENANT_CHANGED, PolicyDecided, TenantChanged
from collectors.erasure import ErasableLog, ErasedTenants
from collectors.open import open_transport
from collectors.provision import open_topic_admin, specified_topics
from collectors.state import CompactedView
from collectors.store import TensorStore
from controller import operation, problems
from controller.admin_key import ensure_admin_key
from controller.authentication import KeyMiddleware
from controller.bounding import BodyLimitMiddleware
from controller.context import Control
from controller.dashboard import routes as dashboard
from controller.dashboard.sessions import Sessions
from controller.dashboard.viewers import Door
from controller.database import Database
from controller.erasing import ErasureWorker
from controller.identity import authorize
from controller.learner_metrics import LearnerCollector
from controller.lease import LeaderDatabase, LeaderLease
from controller.measuring import MeasuringMiddleware
from controller.metrics import DatabaseCollector, Metrics
from controller.openapi import describe
from controller.rates import RateLimits
from controller.routes import audit, drafters, engines, erasures, health, keys, rollouts, series, tenants
from controller.tenants import Defaults, Floor
from controller.workers import PolicyWorker, RelayWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from adaptive.settings import Settings
    from collectors.transport import Transport

STOP_SECONDS: Final = 10.0
API_VERSION: Final = "1.0.0"
_DAY_SECONDS: Final = 86_400.0
_log = structlog.get_logger(__name__)


class ListenError(Exception):
    """The admin API's address cannot be listened on."""


def create_app(settings: Settings, clock: Callable[[], float] = time.time) -> FastAPI:
    """Build the controller: database migrated, log opened, workers started with the application.

    Raises:
        DatabaseUrlError: `database_url` cannot be used.
        TransportError: `log_url` cannot be used.
        AdminKeyError: there is no admin key and none can be made.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    key, made = ensure_admin_key(settings)
    if made:
        # The one time it is shown; the file keeps it.
        print(f"admin key (kept in {settings.home / 'admin_key'}): {key}", flush=True)  # noqa: T201  for the operator
    database = Database(settings.resolved_database_url)
    database.migrate()
    transport = open_transport(settings.resolved_log_url, kafka=settings)
    if isinstance(transport, ErasableLog):  # Kafka's topics are made by `adaptive topics create`
        with open_topic_admin(settings) as admin:
            admin.create(specified_topics(settings), update=True)
    metrics = Metrics()
    metrics.registry.register(DatabaseCollector(database, clock))
    metrics.registry.register(LearnerCollector(settings.home / "learner" / "status.json", clock))
    lease = LeaderLease(database)
    leading = LeaderDatabase(database, lease)
    store = TensorStore(settings.resolved_store_url)
    relay = RelayWorker(leading, transport, metrics, lease)
    policy = PolicyWorker(leading, transport, relay, metrics, clock, lease, settings.canary_share)
    erasure = ErasureWorker(
        leading,
        transport,
        store,
        relay,
        metrics,
        settings.retention_days * _DAY_SECONDS,
        clock,
        lease,
    )
    control = Control(
        database=database,
        store=store,
        lease=lease,
        relay=relay,
        policy=policy,
        erasure=erasure,
        metrics=metrics,
        defaults=Defaults(
            max_lookahead=settings.engine_lookahead,
            control_share=settings.control_share,
            off_share=settings.off_share,
            engine_lookahead=settings.engine_lookahead,
        ),
        floors=_read_floors(transport),
        learner_status=settings.home / "learner" / "status.json",
        clock=clock,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        relay.start()
        policy.start()
        erasure.start()
        yield
        erasure.stop(STOP_SECONDS)
        policy.stop(STOP_SECONDS)
        relay.stop(STOP_SECONDS)
        with suppress(DBAPIError):  # the database is away: the lease ends by itself
            lease.give_back()
        transport.close()
        database.close()

    app = FastAPI(
        title="adaptive-speculator admin API",
        version=API_VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(authorize)],
    )
    app.state.control = control
    problems.install(app)
    operation.install(app)
    app.add_middleware(BodyLimitMiddleware)
    rates = RateLimits(settings.control_requests_per_second)
    app.state.dashboard = Door(Sessions(key), rates, metrics)
    app.add_middleware(KeyMiddleware, key=key, database=database, rates=rates, metrics=metrics)
    app.add_middleware(MeasuringMiddleware, metrics=metrics)
    for module in (tenants, erasures, keys, drafters, rollouts, series, engines, audit, health):
        app.include_router(module.router)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # as FastAPI documents it
    app.include_router(dashboard.router)
    return app


def run(settings: Settings) -> None:
    """Serve the admin API until SIGTERM or SIGINT.

    Raises:
        ListenError: the port is taken or the address is not this machine's.
        DatabaseUrlError, TransportError, AdminKeyError: as `create_app`.
    """
    log.configure("control")
    config = uvicorn.Config(create_app(settings), log_level="warning", timeout_graceful_shutdown=5)
    listening = _listen(settings.host, settings.control_port)
    _log.info("controller starts", host=settings.host, port=settings.control_port)
    # uvicorn raises the signal that ended it once more when it is done: to be told to end is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ListenError(
            f"cannot listen on {host}:{port} ({why}): stop what listens there, or choose another "
            "address with --host and --control-port"
        ) from error


def _read_floors(transport: Transport) -> dict[str, Floor]:
    """Read how far the log has counted per tenant.

    Engines ignore policies older than the last they saw, so a controller whose database was lost must count
    on from there.
    """
    with CompactedView(transport, TOPIC_POLICY_DECIDED, PolicyDecided) as view:
        view.poll()
        policies = {tenant: message.policy_version for tenant, message in view.latest.items()}
    with CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged) as changes:
        changes.poll()
        revisions = {tenant: message.revision for tenant, message in changes.latest.items()}
        generations = {tenant: message.generation for tenant, message in changes.latest.items()}
    with ErasedTenants(transport) as erased:
        erased.poll()
        for tenant, message in erased.latest.items():
            policies[tenant] = max(policies.get(tenant, 0), message.policy_version)
            revisions[tenant] = max(revisions.get(tenant, 0), message.revision)
            generations[tenant] = max(generations.get(tenant, 0), message.generation + 1)
    return {
        tenant: Floor(policies.get(tenant, 0), revisions.get(tenant, 0), generations.get(tenant, 0))
        for tenant in policies.keys() | revisions.keys()
    }
