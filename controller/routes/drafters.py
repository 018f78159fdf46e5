"""Adapter versions of a tenant and the decisions about them."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy import select

from controller import rollout
from controller.context import ControlDependency
from controller.errors import ConflictError
from controller.models import Decision, Tenant, Version
from controller.paging import After, Limit, number_after, page
from controller.schemas import DecisionState, Page, Promote, TenantDetail, VersionState
from controller.tenants import get_tenant
from controller.views import decision_state, tenant_detail, version_state

router = APIRouter(prefix="/v1/tenants/{tenant_id}", tags=["drafters"])


@router.get("/versions")
def versions(
    control: ControlDependency, tenant_id: str, limit: Limit = 100, after: After = None
) -> Page[VersionState]:
    """List the versions learners have published, newest first."""
    query = (
        select(Version).where(Version.tenant == tenant_id).order_by(Version.version.desc()).limit(limit + 1)
    )
    last = number_after(after, "@")
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        rows = session.scalars(query if last is None else query.where(Version.version < last)).all()
        items = [version_state(row) for row in rows]
        return page(items, [item.id for item in items], limit)


@router.get("/decisions")
def decisions(
    control: ControlDependency, tenant_id: str, limit: Limit = 100, after: After = None
) -> Page[DecisionState]:
    """List what was decided and why, newest first."""
    query = select(Decision).where(Decision.tenant == tenant_id).order_by(Decision.id.desc()).limit(limit + 1)
    last = number_after(after, "_")
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        rows = session.scalars(query if last is None else query.where(Decision.id < last)).all()
        items = [decision_state(row) for row in rows]
        return page(items, [item.id for item in items], limit)


@router.post("/promote")
def promote(control: ControlDependency, tenant_id: str, body: Promote) -> TenantDetail:
    """Make a version the champion; the policy goes on watching it."""
    now = control.clock()
    with control.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        if tenant.champion != body.version:
            _refuse_if_pinned(tenant)
            reason = "promoted by an operator"
            rollout.promote(session, tenant, body.version, actor="admin", reason=reason, now=now)
        return tenant_detail(session, tenant, control.learner_status, now)


@router.post("/rollback")
def rollback(control: ControlDependency, tenant_id: str) -> TenantDetail:
    """Return to what served before the champion, else to turbo."""
    now = control.clock()
    with control.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        _refuse_if_pinned(tenant)
        reason = "rolled back by an operator"
        rollout.rollback(session, tenant, actor="admin", reason=reason, now=now)
        return tenant_detail(session, tenant, control.learner_status, now)


def _refuse_if_pinned(tenant: Tenant) -> None:
    if tenant.pin is not None:
        pinned = f"version {tenant.pin}" if tenant.pin else "turbo"
        raise ConflictError(
            f"{pinned} is pinned for tenant {tenant.id!r}: "
            f'PATCH /v1/tenants/{tenant.id} with {{"pin": null}} first'
        )
