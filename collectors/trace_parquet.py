"""Exported traces as Parquet. Importing this needs pyarrow, which the extra `learn` brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyarrow import parquet

from adaptive.contracts import TraceRecord
from collectors.trace_files import TraceFileError, WithoutBytesError
from collectors.transport import LogRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectors.inspection import Found
    from collectors.trace_files import Text

_ROWS: Final = 500
"""Of a row group; token lists make rows long."""
_IDS: Final = pa.list_(pa.int32())
_PLACE: Final = {
    "log_topic": pa.string(),
    "log_partition": pa.int32(),
    "log_offset": pa.int64(),
    "log_timestamp": pa.float64(),
    "log_key": pa.string(),
}
_RAW: Final = {"log_headers": pa.map_(pa.string(), pa.binary()), "log_value": pa.binary()}
_TEXT: Final = {"prompt_text": pa.string(), "output_text": pa.string()}
_PLAIN: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_STEP: Final = {
    "arm": pa.string(),
    "version": pa.int32(),
    "output_offset": pa.int32(),
    "drafted": _IDS,
    "accepted": pa.int32(),
    "confidences": pa.list_(pa.float64()),
}
_SAMPLING: Final = {
    "temperature": pa.float64(),
    "top_p": pa.float64(),
    "top_k": pa.int64(),
    "seed": pa.int64(),
    "max_tokens": pa.int64(),
}
_FEATURES: Final = {
    "uri": pa.string(),
    "sha256": pa.string(),
    "feature_start": pa.int64(),
    "rows": pa.int64(),
    "dtype": pa.string(),
    "bytes": pa.int64(),
    "feature_layers": _IDS,
    "hidden_size": pa.int64(),
    "first_row": pa.int64(),
    "object_rows": pa.int64(),
}


class ParquetWriter:
    """One row per trace, its fields as columns.

    Args:
        path: File to write.
        raw: Whether to keep the record's own bytes, without which a file cannot be sent again.
        text: Whether rows have text.
    """

    def __init__(self, path: Path, *, raw: bool, text: bool) -> None:
        self._raw: Final = raw
        self._schema: Final = pa.schema(_columns() | (_RAW if raw else {}) | (_TEXT if text else {}))
        self._rows: list[dict[str, Any]] = []
        self._file: Final = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, found: Found, text: Text | None) -> None:
        """Add a trace."""
        record, trace = found.record, found.trace
        row: dict[str, Any] = {
            f"log_{name}": getattr(record, name) for name in ("topic", "partition", "offset")
        }
        row |= {"log_timestamp": record.timestamp, "log_key": record.key}
        row |= msgspec.structs.asdict(trace)
        row["steps"] = [msgspec.structs.asdict(step) for step in trace.steps]
        row["sampling"] = msgspec.structs.asdict(trace.sampling)
        row["features"] = msgspec.structs.asdict(trace.features) if trace.features else None
        if self._raw:
            row |= {"log_headers": list(record.headers.items()), "log_value": record.value}
        if text is not None:
            row |= {"prompt_text": text.prompt, "output_text": text.output}
        self._rows.append(row)
        if len(self._rows) == _ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        try:
            self._flush()
        finally:
            self._file.close()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(pa.Table.from_pylist(self._rows, self._schema))
            self._rows = []


def read_parquet(path: Path) -> Iterator[LogRecord]:
    """Yield the records of a file that was exported with their bytes.

    Raises:
        TraceFileError: the file is damaged, no export, or without the records' bytes.
    """
    columns = [*_PLACE, *_RAW]
    try:
        with parquet.ParquetFile(path) as file:
            missing = set(columns) - set(file.schema_arrow.names)
            if missing & _PLACE.keys():
                raise TraceFileError(f"{path} is no export of traces: it has no column {min(missing)}")
            if missing:
                raise WithoutBytesError(path)
            for batch in file.iter_batches(_ROWS, columns=columns):
                for row in batch.to_pylist():
                    fields = {name.removeprefix("log_"): value for name, value in row.items()}
                    fields["headers"] = dict(fields["headers"] or [])
                    yield LogRecord(**fields)
    except pa.ArrowException as error:
        raise TraceFileError(f"{path} is damaged or no Parquet file ({error})") from error


def _columns() -> dict[str, Any]:
    """Columns of every file: the record's place, then the trace's fields in their order."""
    nested = {
        "prompt_ids": _IDS,
        "output_ids": _IDS,
        "steps": pa.list_(pa.struct(_STEP)),
        "sampling": pa.struct(_SAMPLING),
        "features": pa.struct(_FEATURES),
    }
    fields = msgspec.structs.fields(TraceRecord)
    return _PLACE | {field.name: nested.get(field.name) or _PLAIN[field.type] for field in fields}
