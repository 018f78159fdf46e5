"""API keys of a tenant: make, list, revoke."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter

from controller.context import ControlDependency
from controller.paging import page
from controller.schemas import KeySummary, NewKey, Page
from controller.tenants import create_key, get_tenant, revoke_key, valid_keys

router = APIRouter(prefix="/v1/tenants/{tenant_id}/keys", tags=["keys"])


@router.post("", status_code=HTTPStatus.CREATED)
def create(control: ControlDependency, tenant_id: str) -> NewKey:
    """Make a key; it is shown only in this response."""
    with control.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        key, secret = create_key(session, tenant, control.clock())
        return NewKey(id=key.id, key=secret, prefix=key.prefix, created_at=key.created_at)


@router.get("")
def list_valid(control: ControlDependency, tenant_id: str) -> Page[KeySummary]:
    """List the valid keys, oldest first, without their secrets."""
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        keys = valid_keys(session, tenant_id)
        items = [KeySummary(id=key.id, prefix=key.prefix, created_at=key.created_at) for key in keys]
        return page(items, [key.id for key in keys], len(keys))


@router.delete("/{key_id}", status_code=HTTPStatus.NO_CONTENT)
def revoke(control: ControlDependency, tenant_id: str, key_id: str) -> None:
    """Revoke a key; endpoints refuse it within seconds."""
    with control.change() as session:
        revoke_key(session, get_tenant(session, tenant_id, lock=True), key_id, control.clock())
