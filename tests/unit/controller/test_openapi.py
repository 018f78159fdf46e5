"""The committed OpenAPI description is the API's, and the API keeps to it under generated requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controller import rates
from tests.unit.controller.conftest import ADMIN_KEY

if TYPE_CHECKING:
    import pytest

    from tests.unit.controller.conftest import Bench

COMMITTED = Path(__file__).parents[3] / "docs" / "openapi.json"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_committed_description_is_current(bench: Bench) -> None:
    """docs/openapi.json is what the API says of itself; `python -m controller.describe` writes it anew."""
    assert json.loads(COMMITTED.read_text()) == json.loads(json.dumps(bench.app.openapi()))


def test_every_operation_names_its_scope_and_problems(bench: Bench) -> None:
    """Readers of the description see which key each operation needs and that errors are problems."""
    for path, operations in bench.app.openapi()["paths"].items():
        for operation in operations.values():
            if path not in {"/healthz", "/readyz"}:
                assert operation["x-adaptive-scope"] in {"admin", "tenant:read", "tenant:write"}
                assert "application/problem+json" in operation["responses"]["422"]["content"]


def test_generated_requests_are_answered_as_described(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemathesis: every operation answers right and wrong values with a described status and schema."""
    monkeypatch.setattr(rates, "WRONG_KEYS_PER_SECOND", 1e6)
    monkeypatch.setattr(rates, "BURST_SECONDS", 1e6)
    schema = schemathesis.openapi.from_asgi(
        "/openapi.json", bench.app, headers={"Authorization": f"Bearer {ADMIN_KEY}"}
    )
    bench.create()
    bench.publish(1)
    found: list[Any] = list(schema.get_all_operations())
    operations = [result.ok() for result in found]
    assert len(operations) >= 20
    modes = list(schemathesis.GenerationMode)
    for operation in operations:
        if operation.path in {"/readyz", "/metrics"}:  # workers do not run here; Prometheus's own format
            continue
        cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

        @settings(
            max_examples=4,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def run(case: schemathesis.Case[Any]) -> None:
            case.call_and_validate(headers={"Authorization": f"Bearer {ADMIN_KEY}"}, checks=CHECKS)

        run()
