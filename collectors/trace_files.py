"""Traces in files: JSON Lines and Parquet, for people and notebooks, and exact enough to be sent again."""

from __future__ import annotations

import contextlib
from typing import IO, TYPE_CHECKING, Final, Protocol

import msgspec

from adaptive.contracts import TraceRecord, decode
from collectors.transport import LogRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectors.inspection import Found


class TraceFileError(Exception):
    """A file cannot be read as exported traces; names the place."""


class WithoutBytesError(TraceFileError):
    """A file lacks the records' own bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was exported with --no-raw and lacks the records' own bytes: export it without that"
        )


class Text(msgspec.Struct, frozen=True):
    """A trace's text."""

    prompt: str
    output: str


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trace in JSON Lines; bytes are base64."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    key: str
    trace: TraceRecord
    headers: dict[str, bytes] = {}
    value: bytes | None = None
    """The record itself."""
    text: Text | None = None


class TraceWriter(Protocol):
    """Writes traces to a file."""

    def write(self, found: Found, text: Text | None) -> None:
        """Add a trace, with its text where that was asked for."""

    def close(self) -> None:
        """Write what is left."""


class JsonLinesWriter:
    """One `Line` per trace.

    Args:
        file: To write to; not closed.
        raw: Whether to keep the record's own bytes, without which a file cannot be sent again.
    """

    def __init__(self, file: IO[bytes], *, raw: bool) -> None:
        self._file: Final = file
        self._raw: Final = raw

    def write(self, found: Found, text: Text | None) -> None:
        """Add a trace."""
        self._file.write(msgspec.json.encode(as_line(found, text, raw=self._raw)) + b"\n")

    def close(self) -> None:
        """Write what is left."""
        self._file.flush()


def as_line(found: Found, text: Text | None = None, *, raw: bool) -> Line:
    """A trace as exported in JSON Lines."""
    record = found.record
    return Line(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        trace=found.trace,
        headers=record.headers if raw else {},
        value=record.value if raw else None,
        text=text,
    )


def read_records(path: Path) -> Iterator[LogRecord]:
    """Yield the records of a file that was exported with their bytes, in order.

    Raises:
        TraceFileError: the file is missing, no export, or without the records' bytes.
        ModuleNotFoundError: pyarrow is not installed and the file is Parquet.
    """
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
            file.seek(0)
            if parquet:
                from collectors.trace_parquet import read_parquet  # it needs pyarrow  # noqa: PLC0415

                yield from read_parquet(path)
            else:
                yield from _json_records(path, file)
    except OSError as error:
        raise TraceFileError(f"{path} cannot be read ({error.strerror or error})") from error


def generation_of(record: LogRecord) -> int | None:
    """Generation of the account that a trace was made under; None where the record does not decode."""
    with contextlib.suppress(msgspec.MsgspecError):
        return decode(record.value or b"", TraceRecord).generation
    return None


class _RawLine(msgspec.Struct):
    topic: str
    partition: int
    offset: int
    timestamp: float
    key: str
    headers: dict[str, bytes] = {}
    value: bytes | None = None


def _json_records(path: Path, file: IO[bytes]) -> Iterator[LogRecord]:
    for number, line in enumerate(file, start=1):
        try:
            raw = msgspec.json.decode(line, type=_RawLine)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TraceFileError(f"{path}, line {number} is no exported trace ({error})") from error
        if raw.value is None:
            raise WithoutBytesError(path)
        yield LogRecord(**msgspec.structs.asdict(raw))
