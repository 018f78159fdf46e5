"""Who changed what, and every decision, over all tenants."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select

from controller.context import ControlDependency
from controller.models import AuditEntry, Decision
from controller.paging import After, Limit, number_after, page
from controller.schemas import TENANT_PATTERN, AuditState, DecisionState, Page
from controller.views import audit_state, decision_state

router = APIRouter(prefix="/v1", tags=["audit"])
OfTenant = Annotated[str | None, Query(pattern=TENANT_PATTERN, description="Only what is about this tenant.")]


@router.get("/audit")
def entries(
    control: ControlDependency, tenant: OfTenant = None, limit: Limit = 100, after: After = None
) -> Page[AuditState]:
    """List every change made through the API, newest first; entries of erased tenants stay."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit + 1)
    if tenant is not None:
        query = query.where(AuditEntry.tenant == tenant)
    last = number_after(after, "_")
    with control.database.read() as session:
        rows = session.scalars(query if last is None else query.where(AuditEntry.id < last)).all()
        items = [audit_state(row) for row in rows]
        return page(items, [item.id for item in items], limit)


@router.get("/decisions")
def decisions(control: ControlDependency, limit: Limit = 100, after: After = None) -> Page[DecisionState]:
    """List what was decided for whom and why, newest first."""
    query = select(Decision).order_by(Decision.id.desc()).limit(limit + 1)
    last = number_after(after, "_")
    with control.database.read() as session:
        rows = session.scalars(query if last is None else query.where(Decision.id < last)).all()
        items = [decision_state(row) for row in rows]
        return page(items, [item.id for item in items], limit)
