"""The API's OpenAPI description: what the framework knows, with problems, scopes and the bearer key added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from controller.authentication import OPEN_PATHS
from controller.identity import required_scope
from controller.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from fastapi import FastAPI

_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457 problem details.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:adaptive:problem:…"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong and what to do about it."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "detail"],
                "properties": {"field": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}
_PROBLEMS: Final = {
    "401": "Missing or wrong key.",
    "403": "The key's scope or tenant does not reach this.",
    "404": "Something named does not exist.",
    "409": "The state forbids it, or another request is changing the same.",
    "412": "If-Match names another state.",
    "413": "The body is too long.",
    "422": "A field is wrong; `errors` names it.",
    "429": "Too many requests; see Retry-After.",
    "503": "The database or a worker is not ready; see Retry-After.",
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the description once; later calls return the same."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {})["Problem"] = _PROBLEM
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for route in app.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                for method in route.methods:
                    _complete(schema["paths"][route.path][method.lower()], route)
        app.openapi_schema = schema
    return app.openapi_schema


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    """Add what every operation of its kind answers and asks for."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    open_to_all = route.path in OPEN_PATHS
    for status, text in _PROBLEMS.items():
        if not open_to_all or status == "503":
            operation["responses"][status] = {"description": text, "content": content}
    if not open_to_all:
        operation["security"] = [{"key": []}]
        operation["x-adaptive-scope"] = required_scope(route.endpoint).value
