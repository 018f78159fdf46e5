"""Thin client of the admin API; every error is one clear line and exit code 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx

from adaptive.cli.errors import fail
from adaptive.up.addresses import base_url

if TYPE_CHECKING:
    from adaptive.settings import Settings

TIMEOUT_SECONDS: Final = 30.0


def call(settings: Settings, method: str, path: str, body: Any = None) -> Any:
    """Call the controller that these settings describe.

    Returns:
        The JSON of the response; None where it has no body.
    """
    from controller.admin_key import AdminKeyError, find_admin_key  # noqa: PLC0415  needs no controller extra

    url = base_url(settings.host, settings.control_port)
    try:
        key = find_admin_key(settings)
        # No proxy of the environment: the admin key is for the controller only.
        with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            response = client.request(method, path, json=body, headers={"Authorization": f"Bearer {key}"})
    except AdminKeyError as error:
        fail(str(error))
    except httpx.TransportError as error:
        fail(
            f"no controller answers at {url} ({error}): start it with 'adaptive up' or 'adaptive control', "
            "or say where it is with --host and --control-port"
        )
    if not response.is_success:
        fail(_explain(response))
    return response.json() if response.content else None


def call_list(settings: Settings, path: str) -> list[Any]:
    """Read every page of a list."""
    items: list[Any] = []
    after = ""
    while True:
        page = call(settings, "GET", f"{path}?limit=1000{after}")
        items += page["data"]
        if not page["has_more"]:
            return items
        after = f"&after={page['last_id']}"


def _explain(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answered {response.status_code}, which is no controller: check --control-port"
