"""The safetensors layout written without numpy or torch, and without copying the tensors.

Layout: header length (uint64, little endian), header (JSON: dtype, shape and data offsets per tensor), data,
the widest dtypes first. The header is padded to a multiple of 8 bytes, so every tensor is aligned.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPE_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class TensorData(NamedTuple):
    """One contiguous row-major tensor."""

    dtype: str
    """safetensors name: BF16, F32, I64, …"""
    shape: tuple[int, ...]
    data: bytes | memoryview | tuple[bytes | memoryview, ...]
    """Its bytes, or pieces of them in order."""

    @property
    def parts(self) -> tuple[bytes | memoryview, ...]:
        """The pieces, one where it is whole."""
        return self.data if isinstance(self.data, tuple) else (self.data,)

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(memoryview(part).nbytes for part in self.parts)


def serialize(tensors: Mapping[str, TensorData]) -> list[bytes | memoryview]:
    """Return the parts of a safetensors file; concatenated they are the file.

    Raises:
        ValueError: a dtype is unknown, or a tensor's bytes do not fit its dtype and shape; names the tensor.
    """
    entries = {}
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPE_BYTES:
            raise ValueError(f"tensor {name!r}: dtype {tensor.dtype!r} is none of {', '.join(DTYPE_BYTES)}")
    parts: list[bytes | memoryview] = []
    for name, tensor in sorted(tensors.items(), key=lambda item: (-DTYPE_BYTES[item[1].dtype], item[0])):
        size = tensor.size
        expected = math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]
        if size != expected:
            raise ValueError(
                f"tensor {name!r}: {size} bytes, but {tensor.dtype} of shape {tensor.shape} takes {expected}"
            )
        entries[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
        parts += [memoryview(part).cast("B") for part in tensor.parts if memoryview(part).nbytes]
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]
