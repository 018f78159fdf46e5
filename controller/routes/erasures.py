"""Erasures: how far one is, and the record of those that are done."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from controller.context import ControlDependency
from controller.errors import NotFoundError
from controller.models import Erasure
from controller.paging import After, Limit, page
from controller.schemas import ErasureState, Page
from controller.views import erasure_state

JobId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
router = APIRouter(prefix="/v1", tags=["erasures"])


@router.get("/jobs/{job_id}")
def job(control: ControlDependency, job_id: JobId) -> ErasureState:
    """Show how far an erasure is and what it waits for."""
    with control.database.read() as session:
        row = session.get(Erasure, job_id)
        if row is None:
            raise NotFoundError(f"unknown job {job_id!r}: GET /v1/erasures lists those of erasures")
        return erasure_state(row)


@router.get("/erasures")
def list_all(control: ControlDependency, limit: Limit = 100, after: After = None) -> Page[ErasureState]:
    """List every erasure, done or under way: who asked, when, and what was removed. No content."""
    query = select(Erasure).order_by(Erasure.id).limit(limit + 1)
    with control.database.read() as session:
        rows = session.scalars(query if after is None else query.where(Erasure.id > after)).all()
        return page([erasure_state(row) for row in rows], [row.id for row in rows], limit)
