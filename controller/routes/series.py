"""A tenant over time, and how far the learners are."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.context import ControlDependency
from controller.identity import readable_by_tenant
from controller.learner_status import learner_state
from controller.paging import page
from controller.schemas import LearnerState, Page, Series
from controller.series import DEFAULT_SECONDS, choose_step, read_series
from controller.tenants import get_tenant

router = APIRouter(prefix="/v1", tags=["series"])
Moment = Annotated[float | None, Query(ge=0, le=1e11, description="Unix seconds.")]
Step = Annotated[int | None, Query(description="Seconds per point: 5, 60, 300, 3600 or 86400.")]


@router.get("/tenants/{tenant_id}/series")
@readable_by_tenant
def series(
    control: ControlDependency,
    tenant_id: str,
    since: Moment = None,
    until: Moment = None,
    step: Step = None,
) -> Series:
    """Show acceptance, tokens and lift over time by arm, position and context; the last hour by default.

    Steps below 300 seconds go back a day, wider ones a month.
    """
    until = control.clock() if until is None else until
    since = max(until - DEFAULT_SECONDS, 0.0) if since is None else since
    step = choose_step(since, until, step)
    with control.database.read() as session:
        get_tenant(session, tenant_id)
        return read_series(session, tenant_id, since, until, step)


@router.get("/learners")
def learners(control: ControlDependency) -> Page[LearnerState]:
    """List the learners that have run with this state directory: lag, updates due, what is trained."""
    state = learner_state(control.learner_status, control.clock())
    items = [] if state is None else [state]
    return page(items, [item.id for item in items], 1)
