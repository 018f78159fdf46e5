"""The features of a trace on their way into the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from adaptive.contracts import FeatureReference
from collectors.safetensors import DTYPE_BYTES, TensorData

if TYPE_CHECKING:
    from adaptive.contracts import TraceRecord
    from collectors.store import TensorStore

TensorSource = Mapping[str, TensorData] | Callable[[], Mapping[str, TensorData]]
"""Tensors `features` and `last_hidden` (see `FeatureReference`), or a function that gives them."""

_DTYPES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class FeatureMeta(msgspec.Struct, frozen=True):
    """What the features of a trace are; fields as in `FeatureReference`."""

    feature_start: int
    rows: int
    dtype: str
    """bfloat16, float16 or float32."""
    feature_layers: tuple[int, ...]
    hidden_size: int

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype {self.dtype!r} of features is none of {', '.join(_DTYPES)}")

    @property
    def bytes(self) -> int:
        """Bytes of both tensors."""
        width = (len(self.feature_layers) + 1) * self.hidden_size
        return self.rows * width * DTYPE_BYTES[_DTYPES[self.dtype]]


def store_features(
    store: TensorStore, record: TraceRecord, tensors: Mapping[str, TensorData], meta: FeatureMeta
) -> FeatureReference:
    """Write a trace's features as one object and return its claim check.

    The object's name is derived from the trace, so that a repeated attempt replaces it.

    Raises:
        ValueError: the tensors are not what `meta` says; names the tensor.
        StoreError: the store refused them.
    """
    expected = {
        "features": (meta.rows, len(meta.feature_layers) * meta.hidden_size),
        "last_hidden": (meta.rows, meta.hidden_size),
    }
    dtype = _DTYPES[meta.dtype]
    found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    if found != {name: (dtype, shape) for name, shape in expected.items()}:
        raise ValueError(f"features of trace {record.trace_id} are {found}, expected {dtype} of {expected}")
    # Request ids come from clients and may repeat or hold any character; the time of making tells them apart.
    digest = hashlib.sha256(f"{record.trace_id}\0{record.created_at!r}".encode()).hexdigest()
    stored = store.put(record.tenant, f"traces/{digest[:2]}/{digest[2:34]}", tensors)
    return FeatureReference(
        uri=stored.uri,
        sha256=stored.sha256,
        feature_start=meta.feature_start,
        rows=meta.rows,
        dtype=meta.dtype,
        bytes=stored.bytes,
        feature_layers=meta.feature_layers,
        hidden_size=meta.hidden_size,
    )
