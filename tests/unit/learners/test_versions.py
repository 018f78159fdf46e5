"""A version's number and its bytes are used once, even where the ledger that counted them is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    AdapterReference,
    DrafterPublished,
    HoldoutScore,
    encode,
)
from adaptive.settings import Settings
from collectors.open import open_transport
from collectors.state import CompactedView
from learners.adapters import Champions
from learners.drafter import Drafter
from learners.ledger import Ledger
from learners.publish import VersionPublisher
from learners.records import UpdateReport
from learners.updates import Updater
from tests.unit.learners.test_ledger import make_ready, plan

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.store import TensorStore

SCORE = HoldoutScore(2.5, [0.7], 100, 10)


@dataclass
class ListedLog:
    """Keeps what is announced."""

    sent: list[tuple[str, str]] = field(default_factory=list)

    def send(self, topic: str, key: str, value: bytes | None) -> None:
        """Note a record."""
        assert value is not None
        self.sent.append((topic, key))

    def flush(self, timeout: float) -> None:
        """Nothing is pending."""


def report() -> UpdateReport:
    """Of an update that passed the gate as version 1."""
    return UpdateReport(
        plan=plan(),
        publish=True,
        reason="",
        turbo=SCORE,
        champion=None,
        challenger=SCORE,
        champion_version=0,
        gain_estimate=0.1,
        gain_lower=0.1,
        gain_upper=0.1,
        losses=[],
        steps=0,
        training_seconds=1.0,
        evaluation_seconds=1.0,
        evaluated_at=1.0,
        adapter_sha256="",
    )


def announced(version: int) -> DrafterPublished:
    """What an earlier learner announced."""
    return DrafterPublished(
        adapter=AdapterReference("acme", version, "file:///gone", "a" * 64, "t", "u", 8),
        created_at=1.0,
        turbo=SCORE,
        challenger=SCORE,
        champion=None,
        gain_lower=0.1,
        gain_upper=0.2,
        tokens_trained=1,
        training_seconds=1.0,
        mlflow_run_id="",
        trace_first_offset={},
        trace_last_offset={},
    )


def test_published_bytes_are_never_overwritten(store: TensorStore, tmp_path: Path) -> None:
    """Other bytes under a used number become another object; the same bytes again are the same object."""
    publisher, adapter = VersionPublisher(store, ListedLog()), tmp_path / "adapter.safetensors"
    adapter.write_bytes(b"first")
    first = publisher.publish(report(), adapter, "").adapter
    assert publisher.publish(report(), adapter, "").adapter == first
    adapter.write_bytes(b"second")
    second = publisher.publish(report(), adapter, "").adapter
    assert first.uri.endswith(f"acme/adapters/000001-{first.sha256[:12]}.safetensors")
    assert (first.version, second.version) == (1, 1)
    assert store.get(first.uri, first.sha256) == b"first"
    assert store.get(second.uri, second.sha256) == b"second"


@pytest.mark.parametrize(("newest", "planned"), [(None, 1), (7, 8)])
def test_a_new_ledger_counts_on_from_what_was_announced(
    tmp_path: Path, newest: int | None, planned: int
) -> None:
    """The next version follows the newest one on the log, although the ledger knows of none."""
    settings = Settings(home=tmp_path)
    transport, ledger = open_transport(settings.resolved_log_url), Ledger(tmp_path / "ledger.db")
    for number in range(24):
        make_ready(ledger, f"r{number}", f"d{number}")
    with CompactedView(transport, TOPIC_DRAFTER_PUBLISHED, DrafterPublished) as published:
        updater = Updater(
            settings,
            drafter=Mock(spec=Drafter, precision="float32", target_sha256="t", turbo_sha256="u"),
            ledger=ledger,
            replay=Mock(),
            champions=Mock(spec=Champions),
            policies=Mock(latest={}),
            published=published,
            publisher=Mock(),
            tracker=Mock(),
            scores=Mock(),
            directory=tmp_path,
        )
        if newest is not None:
            transport.send(TOPIC_DRAFTER_PUBLISHED, "acme", encode(announced(newest)))
            transport.send(TOPIC_DRAFTER_PUBLISHED, "other", encode(announced(40)))
        update = updater.plan("acme")
    assert update is not None
    assert update.version == planned
    transport.close()
    ledger.close()
