"""Every path but the health checks needs a key, also paths that do not exist."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from anyio.to_thread import run_sync
from sqlalchemy import select
from starlette.datastructures import Headers

from controller.identity import ADMIN, KEY_SCOPES, Principal
from controller.models import Key
from controller.names import KeyScope
from controller.problems import failure_response, problem_response
from controller.tenants import TOKEN_PREFIX, hash_key

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from controller.database import Database
    from controller.metrics import Metrics
    from controller.rates import RateLimits

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/"})
"""Open to all; the dashboard at / asks for a key by itself."""
DASHBOARD_PREFIX: Final = "/dashboard/"


def is_open(path: str) -> bool:
    """Whether a path needs no bearer key: health checks, and the dashboard, which has sessions of its own."""
    return path in OPEN_PATHS or path.startswith(DASHBOARD_PREFIX)


class KeyMiddleware:
    """ASGI middleware that lets a request through only with `Authorization: Bearer <key>`, and not too many.

    It stands before routing, so that a route added later is closed without anyone remembering to close it. It
    says who calls; `controller.identity.authorize` says what that opens.

    Args:
        app: What comes behind.
        key: The admin key.
        database: Where tenants' keys are.
        rates: How many requests a caller has, and how many wrong keys an address.
        metrics: Counts what was turned away.
    """

    def __init__(
        self, app: ASGIApp, key: str, database: Database, rates: RateLimits, metrics: Metrics
    ) -> None:
        self._app = app
        self._key = key.encode()
        self._database = database
        self._rates = rates
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        address = str((scope.get("client") or ("unknown",))[0])
        try:
            principal = await self._identify(Headers(scope=scope).get("authorization", ""))
        except Exception as error:  # noqa: BLE001  the database may be away: say so as routes do
            await failure_response(scope["method"], scope["path"], error)(scope, receive, send)
            return
        wait = self._rates.wait(principal, address)
        if wait is not None:
            await self._refuse_rate(wait)(scope, receive, send)
        elif principal is None:
            await self._refuse_key()(scope, receive, send)
        else:
            scope.setdefault("state", {})["principal"] = principal
            await self._app(scope, receive, send)

    async def _identify(self, authorization: str) -> Principal | None:
        scheme, _, given = authorization.partition(" ")
        given = given.strip()
        if scheme.lower() != "bearer":
            return None
        if hmac.compare_digest(given.encode(), self._key):
            return ADMIN
        if given.startswith(TOKEN_PREFIX):
            return await run_sync(self._find, hash_key(given))
        return None

    def _find(self, sha256: str) -> Principal | None:
        """Look a tenant's key up by its hash: what takes time tells nothing about the key."""
        query = select(Key.id, Key.scope, Key.tenant).where(Key.sha256 == sha256, Key.revoked_at.is_(None))
        with self._database.read() as session:
            found = session.execute(query).one_or_none()
        if found is None or found.scope == KeyScope.INFERENCE:
            return None
        return Principal(found.id, KEY_SCOPES[KeyScope(found.scope)], found.tenant)

    def _refuse_rate(self, wait: float) -> Response:
        self._metrics.turned_away.labels("rate").inc()
        seconds = max(1, -int(-wait // 1))
        return problem_response(
            HTTPStatus.TOO_MANY_REQUESTS,
            "too-many-requests",
            f"too many requests: try again in {seconds} s, or raise ADAPTIVE_CONTROL_REQUESTS_PER_SECOND",
            headers={"Retry-After": str(seconds)},
        )

    def _refuse_key(self) -> Response:
        self._metrics.turned_away.labels("key").inc()
        return problem_response(
            HTTPStatus.UNAUTHORIZED,
            "unauthorized",
            "missing or wrong key: send 'Authorization: Bearer <key>' with the admin key in "
            "ADAPTIVE_ADMIN_KEY, or else in the file admin_key of ADAPTIVE_HOME, or with a tenant's key "
            "of this API",
            headers={"WWW-Authenticate": "Bearer"},
        )
