"""One changing request: against the state its caller saw, done once under its key, and on the audit log.

The answer is kept in the transaction of the change, so a request that is sent again either finds no trace of
the first or its whole answer, whatever happened in between.
"""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError

from controller.context import Control, ControlDependency
from controller.errors import ConflictError, PreconditionError, ReusedKeyError
from controller.identity import PrincipalDependency
from controller.models import Answer, AuditEntry, Tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.orm import Session

    from controller.identity import Principal

ModelT = TypeVar("ModelT", bound=BaseModel | None)
KEPT_SECONDS: Final = 86_400.0
"""How long an answer is replayed."""
_KEPT_HEADERS: Final = ("etag", "location")


class Replay(Exception):  # noqa: N818  no error: the answer of before
    """The request was answered before."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.key)
        self.answer = answer


def install(app: FastAPI) -> None:
    """Answer repeated requests as they were answered first."""
    app.add_exception_handler(Replay, _replay)


async def _replay(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Replay)
    headers = {**error.answer.headers, "Idempotency-Replayed": "true"}
    media_type = "application/json" if error.answer.body else None
    return Response(error.answer.body, error.answer.status, headers, media_type)


def entity_tag(tenant: Tenant) -> str:
    """Name the state of a tenant that operators set; its statistics are not part of it."""
    return f'"{tenant.generation}.{tenant.edition}"'


class Operation:
    """What a route that changes something needs to know of its request."""

    def __init__(
        self,
        control: Control,
        principal: Principal,
        request: Request,
        response: Response,
        *,
        key: str | None,
        fingerprint: str,
        if_match: str | None,
    ) -> None:
        self._control = control
        self._principal = principal
        self._request = request
        self._response = response
        self._key = key
        self._fingerprint = fingerprint
        self._if_match = if_match

    @property
    def actor(self) -> str:
        """Whom decisions name: `admin` or `tenant`."""
        return self._principal.scope.partition(":")[0]

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self._principal

    @contextmanager
    def change(self) -> Iterator[Session]:
        """Open a write transaction whose messages leave as soon as it is committed.

        Raises:
            ConflictError: a request with the same Idempotency-Key was faster.
        """
        with self._control.change() as session:
            yield session

    def expect(self, tenant: Tenant) -> None:
        """Compare the state with the one that the caller saw.

        Raises:
            PreconditionError: If-Match names another one.
        """
        if self._if_match is None or self._if_match.strip() == "*":
            return
        tag = entity_tag(tenant)
        if tag not in [one.strip() for one in self._if_match.split(",")]:
            raise PreconditionError(
                f"tenant {tenant.id!r} is at {tag}, not at {self._if_match}: "
                f"GET /v1/tenants/{tenant.id} again and decide anew"
            )

    def finish(
        self,
        session: Session,
        answer: ModelT,
        *,
        tenant: Tenant | str | None = None,
        details: dict[str, Any] | None = None,
        keep: BaseModel | None = None,
    ) -> ModelT:
        """Put the operation on the audit log and keep its answer, in the transaction of `session`.

        Args:
            session: The transaction.
            answer: What the route returns.
            tenant: Whom it is about; a row gives the answer its entity tag.
            details: What was asked for; no content, no keys.
            keep: What a repetition is answered instead, where the answer holds a secret.
        """
        session.flush()
        if isinstance(tenant, Tenant):
            self._response.headers["ETag"] = entity_tag(tenant)
        name = tenant.id if isinstance(tenant, Tenant) else tenant
        route = self._request.scope["route"]
        session.add(
            AuditEntry(
                at=self._control.clock(),
                actor=self._principal.name,
                scope=self._principal.scope,
                action=f"{self._request.method} {route.path}",
                tenant=name,
                request_id=self._request.state.request_id,
                details=details or {},
            )
        )
        if self._key is not None:
            kept = keep or answer
            session.add(
                Answer(
                    owner=self._principal.name,
                    key=self._key,
                    fingerprint=self._fingerprint,
                    tenant=name,
                    status=route.status_code or 200,
                    headers={
                        header: self._response.headers[header]
                        for header in _KEPT_HEADERS
                        if header in self._response.headers
                    },
                    body=b"" if kept is None else kept.model_dump_json().encode(),
                    created_at=self._control.clock(),
                )
            )
            try:
                session.flush()
            except IntegrityError as error:
                raise ConflictError(
                    "another request with this Idempotency-Key is being answered: try again for its answer"
                ) from error
        return answer


def prune(session: Session, now: float) -> None:
    """Forget answers that are no longer replayed."""
    session.execute(delete(Answer).where(Answer.created_at < now - KEPT_SECONDS))


async def _operation(
    request: Request,
    response: Response,
    control: ControlDependency,
    principal: PrincipalDependency,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            pattern=r"^[\x21-\x7e]+$",
            description="Any text of the client's; a repetition with the same is answered as the first was.",
        ),
    ] = None,
    if_match: Annotated[
        str | None, Header(max_length=255, description="Entity tag that the tenant must still have.")
    ] = None,
) -> Operation:
    fingerprint = ""
    if idempotency_key is not None:
        digest = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode())
        digest.update(await request.body())
        fingerprint = digest.hexdigest()
        await run_in_threadpool(_look_up, control, principal.name, idempotency_key, fingerprint)
    return Operation(
        control,
        principal,
        request,
        response,
        key=idempotency_key,
        fingerprint=fingerprint,
        if_match=if_match,
    )


def _look_up(control: Control, owner: str, key: str, fingerprint: str) -> None:
    with control.database.read() as session:
        answer = session.get(Answer, (owner, key))
    if answer is None:
        return
    if answer.fingerprint != fingerprint:
        raise ReusedKeyError(
            "this Idempotency-Key came with another request before: take a new one, or send the same request"
        )
    raise Replay(answer)


OperationDependency = Annotated[Operation, Depends(_operation)]
