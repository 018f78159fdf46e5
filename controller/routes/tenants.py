"""Tenants: create, list, show, change."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response
from sqlalchemy import select

from controller.context import ControlDependency
from controller.erasure import request_erasure
from controller.errors import ForbiddenError
from controller.identity import Scope, readable_by_tenant, writable_by_tenant
from controller.models import Tenant
from controller.operation import OperationDependency, entity_tag
from controller.paging import After, Limit, page
from controller.schemas import ErasureState, Page, TenantCreate, TenantDetail, TenantPatch, TenantSummary
from controller.tenants import TENANT_FIELDS, Floor, create_tenant, get_tenant, is_tenant_id, patch_tenant
from controller.views import erasure_state, tenant_detail, tenant_summary

router = APIRouter(prefix="/v1/tenants", tags=["tenants"])


@router.post("", status_code=HTTPStatus.CREATED)
def create(control: ControlDependency, operation: OperationDependency, body: TenantCreate) -> TenantDetail:
    """Add a tenant; turbo serves it, and nothing is learned unless `learn` is true."""
    now = control.clock()
    with operation.change() as session:
        tenant = create_tenant(
            session,
            body.id,
            learn=body.learn,
            defaults=control.defaults,
            floor=control.floors.get(body.id, Floor()),
            now=now,
        )
        shown = tenant_detail(session, tenant, control.learner_status, now)
        return operation.finish(session, shown, tenant=tenant, details=body.model_dump(mode="json"))


@router.get("")
def list_all(control: ControlDependency, limit: Limit = 100, after: After = None) -> Page[TenantSummary]:
    """List tenants by name."""
    query = select(Tenant).order_by(Tenant.id).limit(limit + 1)
    with control.database.read() as session:
        rows = session.scalars(query if after is None else query.where(Tenant.id > after)).all()
        return page([tenant_summary(row) for row in rows], [row.id for row in rows], limit)


@router.get("/{tenant_id}")
@readable_by_tenant
def show(control: ControlDependency, tenant_id: str, response: Response) -> TenantDetail:
    """Show all that is known of a tenant; its entity tag is for If-Match of a change."""
    with control.database.read() as session:
        tenant = get_tenant(session, tenant_id)
        response.headers["ETag"] = entity_tag(tenant)
        return tenant_detail(session, tenant, control.learner_status, control.clock())


@router.patch("/{tenant_id}")
@writable_by_tenant
def change(
    control: ControlDependency, operation: OperationDependency, tenant_id: str, body: TenantPatch
) -> TenantDetail:
    """Change fields of a tenant; those left out stay as they are. Its own key may change some only."""
    now = control.clock()
    changes = body.model_dump(exclude_unset=True, mode="json")
    if operation.principal.scope is not Scope.ADMIN:
        kept = sorted(changes.keys() - set(TENANT_FIELDS))
        if kept:
            raise ForbiddenError(
                f"{kept[0]} is the operator's to change: a tenant's key changes {', '.join(TENANT_FIELDS)}"
            )
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        patch_tenant(session, tenant, changes, control.defaults, now, operation.actor)
        session.flush()
        shown = tenant_detail(session, tenant, control.learner_status, now)
        return operation.finish(session, shown, tenant=tenant, details=changes)


@router.delete("/{tenant_id}", status_code=HTTPStatus.ACCEPTED)
def erase(
    control: ControlDependency, operation: OperationDependency, tenant_id: str, response: Response
) -> ErasureState:
    """Erase a tenant: its keys are refused within seconds, its data goes as the job says."""
    with operation.change() as session:
        tenant = session.get(Tenant, tenant_id) if is_tenant_id(tenant_id) else None
        if tenant is not None:
            operation.expect(tenant)
        job = request_erasure(session, tenant_id, actor="admin", now=control.clock())
        state = erasure_state(job)
        response.headers["Location"] = f"/v1/jobs/{state.id}"
        # The record of an erasure outlives the tenant, and holds counts only.
        operation.finish(session, state, details={"tenant": tenant_id, "job": state.id})
    control.erasure.wake()
    return state
