"""Health, readiness and metrics."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from controller.context import ControlDependency
from controller.problems import problem_response

router = APIRouter(tags=["health"])


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Say that the process is alive."""
    return {"status": "ok"}


@router.get("/readyz", response_model=None)
def readyz(control: ControlDependency) -> dict[str, str] | Response:
    """Say whether the database and the log can be used."""
    try:
        control.database.ping()
    except Exception as error:  # noqa: BLE001  whatever the driver raises, the answer is the same
        return _not_ready("database", f"{type(error).__name__}: {error}")
    for worker in (control.relay, control.policy, control.erasure):
        if worker.failing is not None:
            return _not_ready(worker.name, worker.failing)
    return {"status": "ready"}


@router.get("/metrics")
def metrics(control: ControlDependency) -> Response:
    """Render the metrics for Prometheus."""
    return Response(control.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _not_ready(part: str, why: str) -> Response:
    return problem_response(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "not-ready",
        f"{part} is not ready ({why}): it is tried again by itself; see the controller's log if this stays",
    )
