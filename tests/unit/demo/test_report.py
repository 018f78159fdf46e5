"""The report file."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from adaptive.contracts import Arm
from adaptive.demo import report
from adaptive.demo.probe import ArmResult
from tests.unit.demo.prompts import answer

if TYPE_CHECKING:
    from pathlib import Path


def version(number: int, **changes: Any) -> dict[str, Any]:
    """A version as the controller lists it."""
    return {
        "version": number,
        "status": "superseded",
        "holdout_tau": {"turbo": 2.0, "challenger": 2.5},
        "gain_lower": 0.02,
        "gain_upper": 0.09,
        "tokens_trained": 4000 * number,
        "training_seconds": 30.0,
        "uri": "file:///store",
    } | changes


@pytest.fixture
def arms() -> dict[Arm, ArmResult]:
    """Probe results that tell the arms apart."""
    results = {arm: ArmResult() for arm in Arm}
    for number, arm in enumerate((Arm.OFF, Arm.TURBO, Arm.ADAPTER), start=1):
        results[arm].add(answer(tokens=10 * number, seconds=1.0))
    return results


def test_a_tenants_part(arms: dict[Arm, ArmResult]) -> None:
    """Each arm under its name, training summed over versions, versions without internals."""
    made = report.tenant_report(arms, [version(1), version(2, status="champion")])
    assert made["no_speculation"] == {"tokens_per_second": 10.0}
    assert made["turbo"]["tokens_per_second"] == 20.0
    assert made["adapted"]["tokens_per_second"] == 30.0
    assert set(made["turbo"]) == {"tau", "acceptance_per_position", "tokens_per_second"}
    assert set(made["adapted"]) == set(made["turbo"]) | {"versions"}
    assert (made["tokens_trained"], made["training_seconds"]) == (8000, 60.0)
    assert [entry["status"] for entry in made["versions"]] == ["superseded", "champion"]
    assert set(made["versions"][0]) == {
        "version",
        "status",
        "holdout_tau",
        "gain_lower",
        "tokens_trained",
        "training_seconds",
    }


def test_the_adapted_numbers_say_whose_they_are(arms: dict[Arm, ArmResult]) -> None:
    """Every version that answered, in order; 0 is turbo."""
    for number in (7, 2):
        arms[Arm.ADAPTER].add(dataclasses.replace(answer(tokens=1, seconds=1.0), version=number))
    assert report.tenant_report(arms, [])["adapted"]["versions"] == [0, 2, 7]


def test_a_tenant_without_versions(arms: dict[Arm, ArmResult]) -> None:
    """A short run may publish nothing; that is no error."""
    made = report.tenant_report(arms, [])
    assert (made["tokens_trained"], made["training_seconds"], made["versions"]) == (0, 0, [])


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        ([], {"p50": None, "max": None}),
        ([2.0], {"p50": 2.0, "max": 2.0}),
        ([9.0, 1.0, 2.0], {"p50": 2.0, "max": 9.0}),
    ],
)
def test_pauses(pauses: list[float], expected: dict[str, float | None]) -> None:
    """Median and maximum."""
    assert report.pauses_report(pauses) == expected


def test_the_file_is_json_in_a_directory_that_is_made(tmp_path: Path) -> None:
    """Written again, it is replaced."""
    path = tmp_path / "runs" / "demo" / "report.json"
    report.write(path, {"target": "first"})
    report.write(path, {"target": "tiny", "tau": None})
    assert json.loads(path.read_text()) == {"target": "tiny", "tau": None}
