"""From the engine's publisher over a real log and store to a learner's consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import safetensors

from adaptive import contracts
from collectors.consumer import TraceConsumer
from collectors.features import FeatureMeta
from collectors.publisher import Publisher
from collectors.safetensors import TensorData
from collectors.store import TensorStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.collectors.conftest import Log


def trace(number: int) -> contracts.TraceRecord:
    """A trace of full length."""
    return contracts.TraceRecord(
        trace_id=f"request:{number}",
        tenant=f"tenant-{number % 3}",
        request_id="request",
        segment=number,
        created_at=float(number),
        target_sha256="t",
        turbo_sha256="u",
        tokenizer_sha256="k",
        prompt_ids=list(range(300)),
        prompt_length=300,
        output_start=0,
        output_ids=list(range(700)),
        steps=[
            contracts.VerifyStep(contracts.Arm.ADAPTER, 3, 3 * step, [5, 6, 7, 8], 2, [0.1, 0.2, 0.3, 0.4])
            for step in range(256)
        ],
        sampling=contracts.SamplingSummary(temperature=0.7),
        finished=True,
    )


def test_traces_and_features_arrive_whole(log: Log, tmp_path: Path) -> None:
    """Every trace arrives once, and its features are the engine's bytes."""
    store = TensorStore(f"file://{tmp_path}/store")
    publisher = Publisher(log.open, store, 64 << 20)
    meta = FeatureMeta(feature_start=0, rows=8, dtype="bfloat16", feature_layers=(2, 15, 27), hidden_size=16)
    for number in range(60):
        features = {
            "features": TensorData("BF16", (8, 48), bytes([number]) * 768),
            "last_hidden": TensorData("BF16", (8, 16), bytes([number, 255]) * 128),
        }
        publisher.publish_trace(trace(number), lambda features=features: features, meta)
    publisher.close(20)
    assert publisher.statistics().published == 60
    received: dict[int, contracts.TraceRecord] = {}
    deserialize: Any = safetensors.deserialize
    with TraceConsumer(log.open(), "learners") as consumer:
        while len(received) < 60:
            received |= {each.message.segment: each.message for each in consumer.poll(1)}
    for number, record in received.items():
        reference = record.features
        assert reference is not None
        assert record.steps == trace(number).steps
        tensors = dict(deserialize(store.get(reference.uri, reference.sha256)))
        # Traces of a tenant share objects: this one's rows lie somewhere in it. 0: it has one of its own.
        assert reference.rows == 8
        assert tensors["features"]["shape"] == [reference.object_rows or 8, 48]
        assert rows_of(reference, tensors["features"]["data"]) == bytes([number]) * 768
        assert rows_of(reference, tensors["last_hidden"]["data"]) == bytes([number, 255]) * 128
    objects = {record.features.uri for record in received.values() if record.features is not None}
    assert len(objects) < 60


def rows_of(reference: contracts.FeatureReference, data: bytes) -> bytes:
    """A trace's part of an object's tensor."""
    width = len(data) // (reference.object_rows or reference.rows)
    return bytes(data[reference.first_row * width : (reference.first_row + reference.rows) * width])
