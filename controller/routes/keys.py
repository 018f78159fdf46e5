"""Keys of a tenant."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Path
from sqlalchemy import select, tuple_

from controller.context import ControlDependency
from controller.errors import InvalidFieldError
from controller.identity import readable_by_tenant, writable_by_tenant
from controller.models import Key
from controller.operation import OperationDependency
from controller.paging import After, Limit, page
from controller.schemas import KeyCreate, KeyRotate, KeySummary, NewKey, Page
from controller.tenants import create_key, get_tenant, revoke_key, rotate_key
from controller.views import key_summary, new_key

router = APIRouter(prefix="/v1/tenants/{tenant_id}/keys", tags=["keys"])
KeyId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@router.post("", status_code=HTTPStatus.CREATED)
@writable_by_tenant
def create(
    control: ControlDependency,
    operation: OperationDependency,
    tenant_id: str,
    body: Annotated[KeyCreate | None, Body()] = None,
) -> NewKey:
    """Make a key; it is shown only in this response."""
    body = body or KeyCreate()
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        key, secret = create_key(session, tenant, control.clock(), body.scope)
        details = {"key": key.id, "scope": body.scope.value}
        made = new_key(key, secret)
        return operation.finish(session, made, tenant=tenant, details=details, keep=new_key(key, None))


@router.get("")
@readable_by_tenant
def list_valid(
    control: ControlDependency, tenant_id: str, limit: Limit = 100, after: After = None
) -> Page[KeySummary]:
    """List the valid keys, oldest first, without their secrets."""
    query = (
        select(Key)
        .where(Key.tenant == tenant_id, Key.revoked_at.is_(None))
        .order_by(Key.created_at, Key.id)
        .limit(limit + 1)
    )
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        if after is not None:
            last = session.get(Key, after)
            if last is None or last.tenant != tenant_id:
                raise InvalidFieldError(
                    "after", f"{after!r} is no id of this list: take last_id of the page before"
                )
            query = query.where(tuple_(Key.created_at, Key.id) > (last.created_at, last.id))
        keys = session.scalars(query).all()
        return page([key_summary(key) for key in keys], [key.id for key in keys], limit)


@router.post("/{key_id}/rotate", status_code=HTTPStatus.CREATED)
@writable_by_tenant
def rotate(
    control: ControlDependency,
    operation: OperationDependency,
    tenant_id: str,
    key_id: KeyId,
    body: Annotated[KeyRotate | None, Body()] = None,
) -> NewKey:
    """Make a key in place of another, which ends at once or after a while; it is shown only here."""
    grace = (body or KeyRotate()).grace_seconds
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        key, secret = rotate_key(session, tenant, key_id, grace, control.clock())
        details = {"key": key.id, "replaces": key_id, "grace_seconds": grace}
        made = new_key(key, secret)
        return operation.finish(session, made, tenant=tenant, details=details, keep=new_key(key, None))


@router.delete("/{key_id}", status_code=HTTPStatus.NO_CONTENT)
@writable_by_tenant
def revoke(control: ControlDependency, operation: OperationDependency, tenant_id: str, key_id: KeyId) -> None:
    """Revoke a key; endpoints refuse it within seconds."""
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        revoke_key(session, tenant, key_id, control.clock())
        operation.finish(session, None, tenant=tenant, details={"key": key_id})
