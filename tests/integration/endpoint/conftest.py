"""One server for all endpoint tests; starting it takes most of their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adaptive.models import prepare
from tests.integration.endpoint.server import MODEL, ROOT, Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An endpoint that serves `acme` and `other`."""
    prepare(MODEL, ROOT / ".adaptive")
    server = Server(tmp_path_factory.mktemp("endpoint"))
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()
