"""Errors as RFC 9457 problem details (application/problem+json)."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import structlog
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm.exc import StaleDataError
from starlette.exceptions import HTTPException

from controller.database import DatabaseBusyError
from controller.errors import (
    ConflictError,
    ControlError,
    ForbiddenError,
    InvalidFieldError,
    NotFoundError,
    PreconditionError,
    ReusedKeyError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:adaptive:problem:"

_STATUS: Final[dict[type[ControlError], tuple[HTTPStatus, str]]] = {
    NotFoundError: (HTTPStatus.NOT_FOUND, "not-found"),
    ConflictError: (HTTPStatus.CONFLICT, "conflict"),
    InvalidFieldError: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request"),
    ForbiddenError: (HTTPStatus.FORBIDDEN, "forbidden"),
    PreconditionError: (HTTPStatus.PRECONDITION_FAILED, "precondition-failed"),
    UnavailableError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
    ReusedKeyError: (HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-key-reused"),
}
RETRY_SECONDS: Final = 2
_log = structlog.get_logger(__name__)


def install(app: FastAPI) -> None:
    """Answer every error of an application as a problem."""
    app.add_exception_handler(ControlError, _on_control_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    # By themselves and not as Exception: the framework raises what it answers as that once more.
    for kind in (OperationalError, PoolTimeoutError, DatabaseBusyError, StaleDataError, IntegrityError):
        app.add_exception_handler(kind, _on_failure)
    app.add_exception_handler(Exception, _on_failure)


def problem_response(
    status: HTTPStatus,
    kind: str,
    detail: str,
    *,
    errors: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Make the response of a problem.

    Args:
        status: HTTP status.
        kind: Last part of the problem's type URN.
        detail: What is wrong and what to do about it.
        errors: Per offending field: `field` and `detail`.
        headers: More response headers.
    """
    body: dict[str, Any] = {
        "type": TYPE_PREFIX + kind,
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
    }
    if errors:
        body["errors"] = list(errors)
    return JSONResponse(body, status.value, dict(headers or {}), media_type=MEDIA_TYPE)


async def _on_control_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ControlError)
    status, kind = _STATUS[type(error)]
    if isinstance(error, InvalidFieldError):
        errors = [{"field": error.field, "detail": error.detail}]
        return problem_response(status, kind, f"{error.field}: {error.detail}", errors=errors)
    return problem_response(status, kind, error.detail)


async def _on_validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [_describe(item) for item in error.errors()]
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid-request",
        "; ".join(f"{item['field']}: {item['detail']}" for item in errors),
        errors=errors,
    )


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.BAD_REQUEST:  # the framework's word for bytes that are no text
        wrong = {"field": "body", "detail": "not JSON in UTF-8: send a JSON object"}
        detail = f"body: {wrong['detail']}"
        return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=[wrong])
    details = {
        HTTPStatus.NOT_FOUND: (
            "not-found",
            f"there is no {request.url.path}: the API starts at /v1/tenants and /v1/engines",
        ),
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("too-large", str(error.detail)),
        HTTPStatus.METHOD_NOT_ALLOWED: (
            "method-not-allowed",
            f"{request.url.path} does not take {request.method}: see the Allow header",
        ),
    }
    kind, detail = details.get(status, ("http", str(error.detail)))
    return problem_response(status, kind, detail, headers=error.headers)


async def _on_failure(request: Request, error: Exception) -> JSONResponse:
    return failure_response(request.method, request.url.path, error)


def failure_response(method: str, path: str, error: Exception) -> JSONResponse:
    """Answer what nobody foresaw, or what the database refuses for now; nothing of its message gets out."""
    if isinstance(error, StaleDataError | IntegrityError):
        return problem_response(
            HTTPStatus.CONFLICT,
            "conflict",
            "another request changed the same at the same time, nothing was done: try again",
        )
    if isinstance(error, OperationalError | PoolTimeoutError | DatabaseBusyError):
        _log.warning("database refuses", method=method, path=path, error=type(error).__name__)
        return problem_response(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "database-unavailable",
            "the database is locked or away, nothing was changed: try again; if this stays, see that "
            "ADAPTIVE_DATABASE_URL answers and that no other program holds a lock on it",
            headers={"Retry-After": str(RETRY_SECONDS)},
        )
    _log.error("request failed", method=method, path=path, exc_info=error)
    return problem_response(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        f"{type(error).__name__}; nothing was changed: see the controller's log, and try again",
    )


def _describe(item: Mapping[str, Any]) -> dict[str, str]:
    """Name the field and what to do about one validation error."""
    location = [str(part) for part in item["loc"]]
    field = ".".join(location[1:]) if len(location) > 1 else location[0]
    kind, context = str(item["type"]), item.get("ctx", {})
    if kind == "json_invalid":
        return {
            "field": "body",
            "detail": f"not JSON ({context.get('error', 'syntax error')}): send a JSON object",
        }
    if kind == "missing":
        return {"field": field, "detail": "missing: add it"}
    if kind == "extra_forbidden":
        return {"field": field, "detail": "unknown field: remove it or correct its name"}
    if kind == "string_pattern_mismatch":
        return {"field": field, "detail": f"must match {context['pattern']}: choose another value"}
    message = str(item["msg"])
    if kind == "null":
        return {"field": field, "detail": message}
    return {"field": field, "detail": f"{message[:1].lower()}{message[1:]}: correct it"}
