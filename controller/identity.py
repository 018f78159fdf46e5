"""Who calls, and what that opens: routes declare their scope, and one that declares none is the admin's."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from fastapi import Depends, Request

from controller.errors import ForbiddenError
from controller.names import KeyScope

if TYPE_CHECKING:
    from collections.abc import Callable

HandlerT = TypeVar("HandlerT", bound="Callable[..., Any]")
_ATTRIBUTE: Final = "required_scope"


class Scope(enum.StrEnum):
    """What a caller may do."""

    ADMIN = "admin"
    TENANT_READ = "tenant:read"
    TENANT_WRITE = "tenant:write"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    name: str
    """`admin`, or the id of a tenant's key."""
    scope: Scope
    tenant: str | None = None
    """The only tenant whose routes are open to it; None: all."""


ADMIN: Final = Principal("admin", Scope.ADMIN)
KEY_SCOPES: Final = {KeyScope.TENANT_READ: Scope.TENANT_READ, KeyScope.TENANT_WRITE: Scope.TENANT_WRITE}


def readable_by_tenant(handler: HandlerT) -> HandlerT:
    """Open a route of `/v1/tenants/{tenant_id}` to that tenant's keys of both scopes."""
    setattr(handler, _ATTRIBUTE, Scope.TENANT_READ)
    return handler


def writable_by_tenant(handler: HandlerT) -> HandlerT:
    """Open a route of `/v1/tenants/{tenant_id}` to that tenant's keys that may write."""
    setattr(handler, _ATTRIBUTE, Scope.TENANT_WRITE)
    return handler


def required_scope(handler: Any) -> Scope:
    """Look up the scope a route asks for."""
    return getattr(handler, _ATTRIBUTE, Scope.ADMIN)


def authorize(request: Request) -> None:
    """Let only callers of the right scope and tenant through; a dependency of every route.

    Raises:
        ForbiddenError: says which key is needed, and nothing of what exists.
    """
    principal = getattr(request.state, "principal", None)
    if principal is None:  # a path that is open to all
        return
    if principal.scope is Scope.ADMIN:
        return
    required = required_scope(request.scope["endpoint"])
    if required is Scope.ADMIN:
        raise ForbiddenError("this needs the admin key: a tenant's key opens /v1/tenants/{its id} only")
    if request.path_params.get("tenant_id") != principal.tenant:
        raise ForbiddenError(
            f"this key is of tenant {principal.tenant!r}: use a key of the tenant in the path"
        )
    if required is Scope.TENANT_WRITE and principal.scope is not Scope.TENANT_WRITE:
        raise ForbiddenError("this key may only read: use one of scope tenant:write")


def _principal(request: Request) -> Principal:
    principal = request.state.principal
    assert isinstance(principal, Principal)
    return principal


PrincipalDependency = Annotated[Principal, Depends(_principal)]
