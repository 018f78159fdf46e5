"""One endpoint with fewer slots than tenants, for the short soak and the canaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adaptive.models import prepare
from tests.bench import result
from tests.bench.soak import SLOTS, TENANTS
from tests.bench.soak_service import MODEL, SoakService

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoakService]:
    """It learns from every tenant and shares nothing."""
    prepare(MODEL, result.ROOT / ".adaptive")
    service = SoakService(tmp_path_factory.mktemp("soak"), TENANTS, SLOTS)
    try:
        service.wait_ready()
        yield service
    finally:
        service.close()
