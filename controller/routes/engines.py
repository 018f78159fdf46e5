"""Engines as they reported last."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy import select

from controller.context import ControlDependency
from controller.models import Engine, EngineSpeed
from controller.paging import After, Limit, page
from controller.schemas import EngineState, Page
from controller.views import engine_state

router = APIRouter(prefix="/v1/engines", tags=["engines"])


@router.get("")
def list_all(control: ControlDependency, limit: Limit = 100, after: After = None) -> Page[EngineState]:
    """List every engine that has reported, by id."""
    query = select(Engine).order_by(Engine.id).limit(limit + 1)
    with control.database.read() as session:
        rows = session.scalars(query if after is None else query.where(Engine.id > after)).all()
        items = [engine_state(row, control.clock(), session.get(EngineSpeed, row.id)) for row in rows]
        return page(items, [item.id for item in items], limit)
