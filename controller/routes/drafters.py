"""Adapter versions of a tenant and the decisions about them."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from collectors.store import InvalidNameError, StoreUnavailableError
from controller import rollout
from controller.context import ControlDependency
from controller.errors import ConflictError, NotFoundError, UnavailableError
from controller.identity import readable_by_tenant, writable_by_tenant
from controller.models import Decision, Rollout, Tenant, Version, VersionStatus
from controller.operation import OperationDependency
from controller.paging import After, Limit, number_after, page
from controller.schemas import DecisionState, Page, Promote, TenantDetail, VersionDetail, VersionState
from controller.tenants import BY, get_tenant
from controller.views import decision_state, tenant_detail, version_detail, version_state

VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]
router = APIRouter(prefix="/v1/tenants/{tenant_id}", tags=["drafters"])


@router.get("/versions")
@readable_by_tenant
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


@router.get("/versions/{version}")
@readable_by_tenant
def show(control: ControlDependency, tenant_id: str, version: VersionNumber) -> VersionDetail:
    """Show one version with its lineage: MLflow run, trace offsets, seed, and what was decided about it."""
    query = (
        select(Decision)
        .where(Decision.tenant == tenant_id, Decision.version == version)
        .order_by(Decision.id.desc())
        .limit(20)
    )
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        row = session.get(Version, (tenant_id, version))
        if row is None:
            raise NotFoundError(
                f"tenant {tenant_id!r} has no version {version}: "
                f"GET /v1/tenants/{tenant_id}/versions lists them"
            )
        return version_detail(row, session.scalars(query).all())


@router.delete("/versions/{version}", status_code=204)
@writable_by_tenant
def delete(
    control: ControlDependency, operation: OperationDependency, tenant_id: str, version: VersionNumber
) -> None:
    """Delete a version's bytes for good; its record stays. Not while it serves, is pinned or rolled out."""
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        row = session.get(Version, (tenant_id, version))
        if row is None:
            raise NotFoundError(
                f"tenant {tenant_id!r} has no version {version}: "
                f"GET /v1/tenants/{tenant_id}/versions lists them"
            )
        _refuse_if_used(tenant, version, rollout.active(session, tenant_id))
        uri = rollout.published(row).adapter.uri
        if row.status != VersionStatus.DELETED:
            row.status, row.reason = VersionStatus.DELETED, f"was deleted by {BY[operation.actor]}"
    # Nobody can promote it any more. Whatever happens from here on, the same request again finishes it.
    try:
        removed = control.store.remove(uri)
    except InvalidNameError:
        removed = False  # put there under another store_url: not this controller's to remove
    except StoreUnavailableError as error:
        raise UnavailableError(
            f"version {version} is out of use, but its file stays: {error}; send the same request again"
        ) from error
    with operation.change() as session:
        details = {"version": version, "uri": uri, "removed": removed}
        operation.finish(session, None, tenant=get_tenant(session, tenant_id), details=details)


@router.get("/decisions")
@readable_by_tenant
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
@writable_by_tenant
def promote(
    control: ControlDependency, operation: OperationDependency, tenant_id: str, body: Promote
) -> TenantDetail:
    """Make a version the champion; the policy goes on watching it."""
    now = control.clock()
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        if tenant.champion != body.version:
            _refuse_if_pinned(tenant)
            reason = f"promoted by {BY[operation.actor]}"
            rollout.promote(session, tenant, body.version, actor=operation.actor, reason=reason, now=now)
        session.flush()
        shown = tenant_detail(session, tenant, control.learner_status, now)
        return operation.finish(session, shown, tenant=tenant, details={"version": body.version})


@router.post("/rollback")
@writable_by_tenant
def rollback(control: ControlDependency, operation: OperationDependency, tenant_id: str) -> TenantDetail:
    """Return to what served before the champion, else to turbo."""
    now = control.clock()
    with operation.change() as session:
        tenant = get_tenant(session, tenant_id, lock=True)
        operation.expect(tenant)
        _refuse_if_pinned(tenant)
        reason = f"rolled back by {BY[operation.actor]}"
        failed = tenant.champion
        rollout.rollback(session, tenant, actor=operation.actor, reason=reason, now=now)
        session.flush()
        shown = tenant_detail(session, tenant, control.learner_status, now)
        return operation.finish(session, shown, tenant=tenant, details={"version": failed})


def _refuse_if_used(tenant: Tenant, version: int, running: Rollout | None) -> None:
    if tenant.pin == version:
        _refuse_if_pinned(tenant)
    if tenant.champion == version:
        raise ConflictError(
            f"version {version} serves tenant {tenant.id!r}: POST /v1/tenants/{tenant.id}/rollback, "
            "or promote another one first"
        )
    if running is not None and running.version == version:
        raise ConflictError(
            f"version {version} is being rolled out: "
            f"POST /v1/tenants/{tenant.id}/rollouts/{version}/abort first"
        )


def _refuse_if_pinned(tenant: Tenant) -> None:
    if tenant.pin is not None:
        pinned = f"version {tenant.pin}" if tenant.pin else "turbo"
        raise ConflictError(
            f"{pinned} is pinned for tenant {tenant.id!r}: "
            f'PATCH /v1/tenants/{tenant.id} with {{"pin": null}} first'
        )
