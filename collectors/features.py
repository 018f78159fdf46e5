"""The features of traces on their way into the store: several traces of one tenant share an object."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from adaptive.contracts import FeatureReference
from collectors.safetensors import DTYPE_BYTES, TensorData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.store import TensorStore

TensorSource = Mapping[str, TensorData] | Callable[[], Mapping[str, TensorData]]
"""Tensors `features` and `last_hidden` (see `FeatureReference`), or a function that gives them."""

DIRECTORY: Final = "traces"
"""Of every tenant's feature objects, below its own."""
_DTYPES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_NAMES: Final = ("features", "last_hidden")


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


class TraceFeatures(NamedTuple):
    """The features of one trace, ready to be written."""

    tenant: str
    trace_id: str
    created_at: float
    tensors: Mapping[str, TensorData]
    meta: FeatureMeta


def check_features(trace_id: str, tensors: Mapping[str, TensorData], meta: FeatureMeta) -> None:
    """Compare tensors with what `meta` says of them.

    Raises:
        ValueError: they differ; names the trace.
    """
    expected = {
        "features": (meta.rows, len(meta.feature_layers) * meta.hidden_size),
        "last_hidden": (meta.rows, meta.hidden_size),
    }
    dtype = _DTYPES[meta.dtype]
    found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    if found != {name: (dtype, shape) for name, shape in expected.items()}:
        raise ValueError(f"features of trace {trace_id} are {found}, expected {dtype} of {expected}")
    for name, (rows, width) in expected.items():
        size = rows * width * DTYPE_BYTES[dtype]
        if tensors[name].size != size:
            raise ValueError(f"{name} of trace {trace_id}: {tensors[name].size} bytes, expected {size}")


def share_objects(traces: Sequence[TraceFeatures], object_bytes: int) -> list[list[int]]:
    """Divide traces among objects: one tenant and one kind of features each, in order.

    Args:
        traces: Traces with their features.
        object_bytes: Size from which an object takes no more traces.

    Returns:
        Per object the indices of its traces.
    """
    newest: dict[tuple[str, str, tuple[int, ...], int], tuple[list[int], int]] = {}
    objects: list[list[int]] = []
    for index, trace in enumerate(traces):
        meta = trace.meta
        kind = (trace.tenant, meta.dtype, meta.feature_layers, meta.hidden_size)
        members, size = newest.get(kind, ([], object_bytes))
        if size >= object_bytes:
            members, size = [], 0
            objects.append(members)
        members.append(index)
        newest[kind] = members, size + meta.bytes
    return objects


def store_features(store: TensorStore, members: Sequence[TraceFeatures]) -> list[FeatureReference]:
    """Write the features of traces of one tenant as one object; returns their claim checks.

    The object's name is derived from the traces, so that a repeated attempt replaces it.

    Raises:
        StoreError: the store refused them.
    """
    first = members[0].meta
    rows = sum(member.meta.rows for member in members)
    tensors = {
        name: TensorData(
            _DTYPES[first.dtype],
            (rows, members[0].tensors[name].shape[1]),
            tuple(part for member in members for part in member.tensors[name].parts),
        )
        for name in _NAMES
    }
    digest = hashlib.sha256()
    for member in members:
        # Request ids may repeat and hold any character; the time of making tells their traces apart.
        digest.update(f"{member.trace_id}\0{member.created_at!r}\0".encode())
    name = digest.hexdigest()
    stored = store.put(members[0].tenant, f"{DIRECTORY}/{name[:2]}/{name[2:34]}", tensors)
    references = []
    row = 0
    for member in members:
        references.append(
            FeatureReference(
                uri=stored.uri,
                sha256=stored.sha256,
                feature_start=member.meta.feature_start,
                rows=member.meta.rows,
                dtype=first.dtype,
                bytes=stored.bytes,
                feature_layers=first.feature_layers,
                hidden_size=first.hidden_size,
                first_row=row,
                object_rows=rows if len(members) > 1 else 0,
            )
        )
        row += member.meta.rows
    return references
