"""The admin API for commands; every error is one clear line and exit code 1."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from adaptive.cli.errors import fail
from adaptive.up.addresses import base_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adaptive.settings import Settings
    from controller.client import ControlClient


@contextmanager
def controller(settings: Settings) -> Iterator[ControlClient]:
    """Open a client of the controller that these settings describe."""
    # They need no controller extra.
    from controller.admin_key import AdminKeyError, find_admin_key  # noqa: PLC0415
    from controller.client import ControlClient, ControlRefusedError  # noqa: PLC0415

    url = base_url(settings.host, settings.control_port)
    try:
        with ControlClient(url, find_admin_key(settings)) as client:
            yield client
    except (AdminKeyError, ControlRefusedError) as error:
        fail(str(error))
    except httpx.TransportError as error:
        fail(
            f"no controller answers at {url} ({error}): start it with 'adaptive up' or 'adaptive control', "
            "or say where it is with --host and --control-port"
        )


def call(settings: Settings, method: str, path: str, body: Any = None) -> Any:
    """Make one call.

    Returns:
        The JSON of the answer; None where it has no body.
    """
    with controller(settings) as client:
        return client.request(method, path, body)


def call_list(settings: Settings, path: str) -> list[Any]:
    """Read every page of a list."""
    with controller(settings) as client:
        return list(client.items(path))
