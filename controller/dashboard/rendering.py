"""Templates, and the headers that every answer of the dashboard carries."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, TypeVar

from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from controller.dashboard.page import arm_name, machine_time, moment

ResponseT = TypeVar("ResponseT", bound=Response)

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render(template: str, status: HTTPStatus = HTTPStatus.OK, /, **values: Any) -> HTMLResponse:
    """Fill a template in; every value is escaped, only our own pictures are not."""
    return protect(HTMLResponse(_environment.get_template(template).render(**values), status))


def protect(response: ResponseT) -> ResponseT:
    """Add the headers that keep other sites and injected markup out."""
    response.headers.update(HEADERS)
    return response


def _duration(seconds: float) -> str:
    """Write how long something lasts."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(seconds, 0):.0f} s"


_environment: Final = Environment(
    loader=PackageLoader("controller.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    moment=moment, machine_time=machine_time, duration=_duration, picture=Markup, arm_name=arm_name
)
