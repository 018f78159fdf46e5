"""Consent in the engine's process: what a tenant switches off stops at once, what is erased is forgotten."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from adaptive.contracts import Arm
from adaptive.engine.request import RequestPlan
from tests.unit.engine.harness import Harness

if TYPE_CHECKING:
    from adaptive.speculator.config import SpeculatorConfig
    from tests.unit.engine.conftest import AdapterFiles

ACME = RequestPlan(tenant="acme", arm=Arm.ADAPTER, learn=True, share=True, generation=3)
OTHER = RequestPlan(tenant="other", arm=Arm.ADAPTER, learn=True)


@pytest.fixture
def harness(speculator: SpeculatorConfig, adapter_file: AdapterFiles) -> Harness:
    """An engine state of two adapter slots."""
    return Harness(speculator, adapter_file)


def served(harness: Harness, request_id: str) -> None:
    """One step and the end of a request."""
    harness.step(request_id, [], [7])
    harness.state.finish(request_id)


def tenants_published(harness: Harness) -> list[str]:
    """Whose records left the engine."""
    return [segment.record.tenant for segment in harness.publisher.segments]


def test_requests_in_flight_are_no_longer_recorded(harness: Harness) -> None:
    """What was recorded so far is dropped too; other tenants' requests go on being recorded."""
    harness.begin("1", plan=ACME)
    harness.begin("2", plan=OTHER)
    harness.step("1", [], [7])
    assert harness.state.set_consent("acme", learn=False, share=False) >= 1
    served(harness, "1")
    served(harness, "2")
    assert tenants_published(harness) == ["other"]


def test_a_request_admitted_before_the_endpoint_heard_of_it_is_not_recorded(harness: Harness) -> None:
    """Its plan says learn, the engine knows better; once switched on again, recording goes on."""
    harness.state.set_consent("acme", learn=False, share=False)
    harness.begin("1", plan=ACME)
    served(harness, "1")
    assert tenants_published(harness) == []
    harness.state.set_consent("acme", learn=True, share=False)
    harness.begin("2", plan=ACME)
    served(harness, "2")
    assert tenants_published(harness) == ["acme"]


def test_a_withdrawn_share_shows_in_the_records_to_come(harness: Harness) -> None:
    """The tenant's own adapter may still learn from them; they state the account's generation."""
    harness.begin("1", plan=ACME)
    harness.state.set_consent("acme", learn=True, share=False)
    served(harness, "1")
    record = harness.publisher.segments[0].record
    assert (record.share, record.generation) == (False, 3)


def test_an_erased_tenant_leaves_nothing_behind(harness: Harness) -> None:
    """Adapter rows are zeros, counters and staged files are gone, requests in flight end on turbo unnamed."""
    slot = harness.put("acme", 1)
    kept = harness.put("other", 5)
    harness.begin("1", plan=ACME)
    harness.begin("2", plan=OTHER)
    harness.stage("acme", 2)
    dropped = harness.state.forget_tenant("acme")
    assert (dropped["resident adapters"], dropped["staged adapters"]) == (1, 1)
    assert dropped["records"] >= 1
    assert harness.row(slot) == 0.0
    assert harness.row(kept) == 5.0
    assert harness.placed("1") == (Arm.TURBO, 0, 0)
    assert harness.placed("2") == (Arm.ADAPTER, kept, 5)
    assert harness.state.staged.state("acme", 2)[0] == "absent"
    served(harness, "1")
    served(harness, "2")
    info = harness.state.info()
    assert "acme" not in str(info)
    assert tenants_published(harness) == ["other"]
    again = harness.state.forget_tenant("acme")
    assert not any(again.values()), "forgetting again finds nothing"


def test_a_late_request_of_an_erased_tenant_gets_turbo_and_no_record(harness: Harness) -> None:
    """It was admitted just before the endpoint heard of the erasure."""
    harness.put("acme", 1)
    harness.state.forget_tenant("acme", ACME.generation)
    harness.begin("1", plan=ACME)
    assert harness.placed("1") == (Arm.TURBO, 0, 0)
    assert "acme" not in str(harness.state.info())
    served(harness, "1")
    assert "acme" not in str(harness.state.info()), "telemetry would name it again"
    harness.begin("2", plan=dataclasses.replace(ACME, generation=ACME.generation + 1))
    assert "acme" in str(harness.state.info()), "a new tenant of the name is another one"
    harness.state.finish("2")
    assert tenants_published(harness) == []
