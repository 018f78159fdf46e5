"""From a request's segments to the log and the tensor store, off the engine's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from collectors.features import FeatureMeta
from collectors.open import open_transport
from collectors.publisher import Publisher
from collectors.safetensors import TensorData
from collectors.sampling import Sampler
from collectors.store import TensorStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adaptive.engine.config import CaptureConfig, EngineConfig
    from adaptive.engine.recorder import FeatureRows, Segment

_SAFETENSORS_DTYPES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_CLOSE_SECONDS: Final = 5.0


class TracePublisher:
    """Hands segments to the publisher's queue; tensors become bytes on its thread."""

    def __init__(self, config: EngineConfig, capture: CaptureConfig) -> None:
        self._layers = config.feature_layers
        self._sampler = Sampler(capture.bytes_per_second)
        self.most_row_bytes: Final = capture.queue_bytes // 2
        """Most feature bytes that requests in flight, and any one of them, may hold."""
        self._publisher = Publisher(
            lambda: open_transport(capture.log_url),
            TensorStore(capture.store_url),
            capture.queue_bytes,
            sampler=self._sampler,
            object_bytes=capture.object_bytes,
            linger=capture.linger_seconds,
        )

    def take_request(self) -> bool:
        """Whether to record a request that begins now."""
        return self._sampler.take_request()

    def take_features(self) -> bool:
        """Whether to keep the features of a request that is recorded."""
        return self._sampler.take_features()

    def drop_tenant(self, tenant: str) -> int:
        """Drop what waits of a tenant; the number of traces."""
        return self._publisher.drop_tenant(tenant)

    def publish(self, segment: Segment) -> None:
        """Queue one segment; never blocks."""
        rows = segment.rows
        if not rows:
            self._publisher.publish_trace(segment.record)
            return
        last_hidden = rows[0].last_hidden
        meta = FeatureMeta(
            feature_start=rows[0].start,
            rows=sum(part.features.shape[0] for part in rows),
            dtype=str(last_hidden.dtype).removeprefix("torch."),
            feature_layers=self._layers,
            hidden_size=last_hidden.shape[1],
        )
        self._publisher.publish_trace(segment.record, lambda: _tensors(rows), meta)

    def statistics(self) -> dict[str, Any]:
        """The publisher's counters as plain values."""
        statistics: dict[str, Any] = msgspec.to_builtins(self._publisher.statistics())
        return statistics | {"sampling": msgspec.to_builtins(self._publisher.sampling())}

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued is in the log."""
        return self._publisher.flush(timeout)

    def close(self) -> None:
        """Publish what is queued, for a bounded time."""
        self._publisher.close(_CLOSE_SECONDS)


def _tensors(rows: Sequence[FeatureRows]) -> Mapping[str, TensorData]:
    return {
        "features": _tensor_data([part.features for part in rows]),
        "last_hidden": _tensor_data([part.last_hidden for part in rows]),
    }


def _tensor_data(parts: Sequence[torch.Tensor]) -> TensorData:
    tensor = torch.cat(list(parts)).cpu().contiguous()
    dtype = _SAFETENSORS_DTYPES[str(tensor.dtype).removeprefix("torch.")]
    return TensorData(dtype, tuple(tensor.shape), tensor.view(torch.uint8).numpy().tobytes())
