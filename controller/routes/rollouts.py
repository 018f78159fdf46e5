"""Rollouts: what is on its way into service, how far it is, and ending it by hand."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from sqlalchemy import select, tuple_

from controller import stages
from controller.context import ControlDependency
from controller.errors import ConflictError, NotFoundError
from controller.identity import readable_by_tenant, writable_by_tenant
from controller.models import Rollout, VersionStatus
from controller.operation import OperationDependency
from controller.paging import After, Limit, number_after, page
from controller.schemas import Page, RolloutState
from controller.tenants import BY, get_tenant
from controller.trial import ACTIVE
from controller.views import rollout_state

VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]
Progress = Annotated[
    Literal["running", "ended"] | None, Query(description="Only those under way, or only those that ended.")
]
router = APIRouter(prefix="/v1", tags=["rollouts"])


@router.get("/rollouts")
def list_all(
    control: ControlDependency, state: Progress = None, limit: Limit = 100, after: After = None
) -> Page[RolloutState]:
    """List the rollouts of every tenant by tenant and version."""
    query = select(Rollout).order_by(Rollout.tenant, Rollout.version).limit(limit + 1)
    if state is not None:
        running = Rollout.stage.in_(ACTIVE)
        query = query.where(running if state == "running" else ~running)
    number = number_after(after, "@")
    if after is not None and number is not None:
        tenant = after.rpartition("@")[0]
        query = query.where(tuple_(Rollout.tenant, Rollout.version) > tuple_(tenant, number))
    with control.database.read() as session:
        items = [rollout_state(row) for row in session.scalars(query)]
        return page(items, [item.id for item in items], limit)


@router.get("/tenants/{tenant_id}/rollouts")
@readable_by_tenant
def list_of_tenant(
    control: ControlDependency, tenant_id: str, limit: Limit = 100, after: After = None
) -> Page[RolloutState]:
    """List a tenant's rollouts, newest version first."""
    query = (
        select(Rollout).where(Rollout.tenant == tenant_id).order_by(Rollout.version.desc()).limit(limit + 1)
    )
    last = number_after(after, "@")
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        rows = session.scalars(query if last is None else query.where(Rollout.version < last)).all()
        items = [rollout_state(row) for row in rows]
        return page(items, [item.id for item in items], limit)


@router.get("/tenants/{tenant_id}/rollouts/{version}")
@readable_by_tenant
def show(control: ControlDependency, tenant_id: str, version: VersionNumber) -> RolloutState:
    """Show the stage of a version's rollout with the numbers that it will be judged by."""
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        row = session.get(Rollout, (tenant_id, version))
        if row is None:
            raise _missing(tenant_id, version)
        return rollout_state(row)


@router.post("/tenants/{tenant_id}/rollouts/{version}/abort")
@writable_by_tenant
def abort(
    control: ControlDependency, operation: OperationDependency, tenant_id: str, version: VersionNumber
) -> RolloutState:
    """End a rollout at once; its version stays a candidate, and the champion gets the canary's requests."""
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        row = session.get(Rollout, (tenant_id, version))
        if row is None:
            raise _missing(tenant_id, version)
        if row.stage not in ACTIVE:
            raise ConflictError(
                f"the rollout of version {version} has ended already, as {row.stage}: a champion is taken "
                f"out of service by POST /v1/tenants/{tenant_id}/rollback"
            )
        evidence = rollout_state(row).model_dump(include={"share", "traces", "gain_lower", "gain_upper"})
        stages.abort(
            session,
            tenant,
            row,
            f"aborted by {BY[operation.actor]}",
            control.clock(),
            VersionStatus.CANDIDATE,
            actor=operation.actor,
            evidence=row.evidence | evidence,
        )
        session.flush()
        return operation.finish(session, rollout_state(row), tenant=tenant, details={"version": version})


def _missing(tenant_id: str, version: int) -> NotFoundError:
    return NotFoundError(
        f"version {version} of tenant {tenant_id!r} has no rollout: "
        f"GET /v1/tenants/{tenant_id}/rollouts lists them"
    )
