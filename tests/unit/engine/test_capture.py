"""From segments to the log and the tensor store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load

from adaptive import contracts
from adaptive.contracts import Arm, SamplingSummary, TraceRecord
from adaptive.engine.capture import TracePublisher
from adaptive.engine.config import CaptureConfig, EngineConfig
from adaptive.engine.recorder import FeatureRows, Fingerprints, RequestRecorder, Segment
from adaptive.engine.request import RequestPlan
from collectors.open import open_transport
from collectors.store import TensorStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYERS = (1, 2)
HIDDEN = 4


@pytest.fixture
def capture(tmp_path: Path) -> CaptureConfig:
    """A log and a store of its own."""
    return CaptureConfig(f"sqlite:///{tmp_path}/log.db", f"file://{tmp_path}/store", 1 << 20)


@pytest.fixture
def publisher(capture: CaptureConfig) -> Iterator[TracePublisher]:
    """A publisher into them."""
    config = EngineConfig(
        slots=2,
        rank=2,
        lookahead=4,
        target_sha256="t",
        turbo_sha256="u",
        tokenizer_sha256="k",
        feature_layers=LAYERS,
        capture=capture,
    )
    made = TracePublisher(config, capture)
    yield made
    made.close()


def segment(rows: list[FeatureRows]) -> Segment:
    """A finished request of two output tokens."""
    recorder = RequestRecorder(
        RequestPlan(tenant="acme", learn=True),
        "request-1",
        [5, 6],
        SamplingSummary(),
        Fingerprints("t", "u", "k"),
        lambda _: False,
    )
    recorder.step(Arm.TURBO, 0, [9], [9, 8], [0.5])
    for part in rows:
        recorder.rows(part)
    return recorder.cut(finished=True)


def published(capture: CaptureConfig) -> TraceRecord:
    """The one record of the log."""
    transport = open_transport(capture.log_url)
    consumer = transport.consumer([contracts.TOPIC_TRACE_RECORDED], None)
    (record,) = consumer.poll(5.0)
    transport.close()
    assert record.key == "acme"
    assert record.value is not None
    return contracts.decode(record.value, TraceRecord)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_travel_by_claim_check(
    publisher: TracePublisher, capture: CaptureConfig, dtype: torch.dtype
) -> None:
    """The record names an object whose rows are those that were captured, bit for bit."""
    features = torch.randn(5, len(LAYERS) * HIDDEN).to(dtype)
    last_hidden = torch.randn(5, HIDDEN).to(dtype)
    parts = [
        FeatureRows(3, features[:2], last_hidden[:2]),
        FeatureRows(5, features[2:], last_hidden[2:]),
    ]
    publisher.publish(segment(parts))
    assert publisher.flush(10)
    reference = published(capture).features
    assert reference is not None
    assert (reference.feature_start, reference.rows, reference.hidden_size) == (3, 5, HIDDEN)
    assert (reference.dtype, reference.feature_layers) == (str(dtype).removeprefix("torch."), LAYERS)
    tensors = load(TensorStore(capture.store_url).get(reference.uri, reference.sha256))
    assert torch.equal(tensors["features"], features)
    assert torch.equal(tensors["last_hidden"], last_hidden)


def test_unsampled_requests_travel_without_features(
    publisher: TracePublisher, capture: CaptureConfig, tmp_path: Path
) -> None:
    """The trace alone goes to the log, nothing to the store; the counters are plain values."""
    publisher.publish(segment([]))
    assert publisher.flush(10)
    record = published(capture)
    assert (record.output_ids, record.features) == ([9, 8], None)
    assert not list((tmp_path / "store").rglob("*.safetensors"))
    assert publisher.statistics()["published"] == 1
    assert publisher.statistics()["dropped"] == 0
