"""Tenants: create, list, show, change."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response
from sqlalchemy import select

from controller.context import ControlDependency
from controller.erasure import request_erasure
from controller.models import Tenant
from controller.paging import After, Limit, page
from controller.schemas import ErasureState, Page, TenantCreate, TenantDetail, TenantPatch, TenantSummary
from controller.tenants import Floor, create_tenant, get_tenant, patch_tenant
from controller.views import erasure_state, tenant_detail, tenant_summary

router = APIRouter(prefix="/v1/tenants", tags=["tenants"])


@router.post("", status_code=HTTPStatus.CREATED)
def create(control: ControlDependency, body: TenantCreate) -> TenantDetail:
    """Add a tenant; turbo serves it, and nothing is learned unless `learn` is true."""
    now = control.clock()
    with control.change() as session:
        tenant = create_tenant(
            session,
            body.id,
            learn=body.learn,
            defaults=control.defaults,
            floor=control.floors.get(body.id, Floor()),
            now=now,
        )
        return tenant_detail(session, tenant, control.learner_status, now)


@router.get("")
def list_all(control: ControlDependency, limit: Limit = 100, after: After = None) -> Page[TenantSummary]:
    """List tenants by name."""
    query = select(Tenant).order_by(Tenant.id).limit(limit + 1)
    with control.database.read() as session:
        rows = session.scalars(query if after is None else query.where(Tenant.id > after)).all()
        return page([tenant_summary(row) for row in rows], [row.id for row in rows], limit)


@router.get("/{tenant_id}")
def show(control: ControlDependency, tenant_id: str) -> TenantDetail:
    """Show all that is known of a tenant."""
    with control.database.read() as session:
        tenant = get_tenant(session, tenant_id)
        return tenant_detail(session, tenant, control.learner_status, control.clock())


@router.patch("/{tenant_id}")
def change(control: ControlDependency, tenant_id: str, body: TenantPatch) -> TenantDetail:
    """Change fields of a tenant; those left out stay as they are."""
    now = control.clock()
    with control.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        changes = body.model_dump(exclude_unset=True, mode="json")
        patch_tenant(session, tenant, changes, control.defaults, now)
        return tenant_detail(session, tenant, control.learner_status, now)


@router.delete("/{tenant_id}", status_code=HTTPStatus.ACCEPTED)
def erase(control: ControlDependency, tenant_id: str, response: Response) -> ErasureState:
    """Erase a tenant: its keys are refused within seconds, its data goes as the job says."""
    with control.change() as session:
        job = request_erasure(session, tenant_id, actor="admin", now=control.clock())
        state = erasure_state(job)
    control.erasure.wake()
    response.headers["Location"] = f"/v1/jobs/{state.id}"
    return state
