"""`adaptive traces replay`: recorded traces, sent again byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from adaptive.cli.display import AsJson, print_json
from adaptive.cli.errors import WRONG_USE, clean_errors, fail
from adaptive.cli.extras import needs
from adaptive.cli.options import with_settings
from adaptive.cli.traces.common import (
    LOG_FIELDS,
    Arms,
    Requests,
    Since,
    Tenants,
    Until,
    Versions,
    opened,
    progress,
    report_passed_over,
    selection,
)
from adaptive.contracts import DEAD_LETTER_SUFFIX, TOPIC_TRACE_RECORDED, TOPICS, TraceRecord, decode
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectors.inspection import Selection
    from collectors.transport import LogRecord, Transport


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_settings(*LOG_FIELDS)(replay))


def replay(
    settings: Settings,
    source: Annotated[
        Path | None, typer.Option("--from", help="Exported file to read; default: the log of --log-url.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="URL of the log to write to; default: the log of --log-url.")
    ] = None,
    to_topic: Annotated[str, typer.Option(help="Topic to write to.")] = TOPIC_TRACE_RECORDED,
    tenant: Tenants = None,
    request: Requests = None,
    version: Versions = None,
    arm: Arms = None,
    since: Since = None,
    until: Until = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also into the topic that the traces lie in already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send recorded traces again: the same keys, values and headers, in the same order per tenant.

    What was sent is read back, and its sha256 printed: of keys, values, headers and order, so that it is the
    same for the same session wherever it lies. Traces of tenants erased in either log are left out. Learners
    train on a trace once: into the log that it came from, a replay only repeats what they know.
    """
    reserved = {name + end for name in TOPICS for end in ("", DEAD_LETTER_SUFFIX)} - {TOPIC_TRACE_RECORDED}
    if to_topic in reserved:
        fail(
            f"--to-topic {to_topic} holds other messages than traces: use {TOPIC_TRACE_RECORDED} or a topic "
            "made for this",
            WRONG_USE,
        )
    chosen = selection(tenant, version, arm, since, until, request)
    target = to or settings.resolved_log_url
    if (
        source is None
        and target == settings.resolved_log_url
        and to_topic == TOPIC_TRACE_RECORDED
        and not force
    ):
        fail(
            "the traces would go into the topic that they come from: name another log with --to or another "
            "topic with --to-topic, or insist with --force",
            WRONG_USE,
        )
    with needs("learn"):
        from collectors.resend import lies_in, resend  # noqa: PLC0415  commands load what they need
        from collectors.trace_files import TraceFileError  # noqa: PLC0415  same
    with opened(settings, target) as log, clean_errors(TraceFileError), progress("sending") as show:
        records = _left(
            _from_log(settings, chosen) if source is None else _from_file(source, settings, chosen), log
        )
        first = next(records, None)
        if first is None:
            fail("no traces match: nothing was sent")
        if not force and lies_in(first, log, to_topic):
            fail(
                f"{to_topic} of {target} is where these traces lie already: name another log with --to, or "
                "insist with --force",
                WRONG_USE,
            )
        result = resend(_chain(first, records), log, to_topic, lambda count: show(count, 0))
    if as_json:
        print_json({"records": result.records, "bytes": result.bytes, "sha256": result.sha256, "to": target})
        return
    typer.echo(f"{result.records} traces, {result.bytes} bytes, read back the same")
    typer.echo(f"sha256 {result.sha256}")


def _from_log(settings: Settings, chosen: Selection) -> Iterator[LogRecord]:
    from collectors.inspection import TraceReader  # noqa: PLC0415  commands load what they need

    with opened(settings) as transport, TraceReader(transport) as reader:
        for found in reader.scan(chosen):
            yield found.record
        report_passed_over(reader)


def _from_file(path: Path, settings: Settings, chosen: Selection) -> Iterator[LogRecord]:
    """Records of a file, without those erased since in the log that the settings name."""
    from collectors.trace_files import TraceFileError, read_records  # noqa: PLC0415  as above

    with clean_errors(TraceFileError), needs("learn"):
        erased = _erasures(settings)
        for record in read_records(path):
            if erased(record):
                continue
            try:
                trace = decode(record.value or b"", TraceRecord)
            except msgspec.MsgspecError as error:
                raise TraceFileError(
                    f"{path}: the record of {record.partition}:{record.offset} is no trace that this version "
                    f"reads ({error}): update this version, or take the record out of the file"
                ) from error
            if chosen.trace(trace):
                yield record


def _erasures(settings: Settings) -> Callable[[LogRecord], bool]:
    """Whether a record of a file was erased in the log of these settings; never where there is no log."""
    from collectors.erasure import ErasedTenants  # noqa: PLC0415  as above
    from collectors.trace_files import generation_of  # noqa: PLC0415  same

    url = settings.resolved_log_url
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        return lambda _record: False
    with opened(settings) as transport:
        erased = ErasedTenants(transport)
        erased.poll()
        erased.close()
    return lambda record: erased.is_erased(
        record.topic, record.partition, record.offset, record.key, generation_of(record)
    )


def _left(records: Iterator[LogRecord], log: Transport) -> Iterator[LogRecord]:
    """Records whose tenants were not erased in the log they go to; places there mean nothing yet."""
    from collectors.erasure import ErasedTenants, covers  # noqa: PLC0415  as above
    from collectors.trace_files import generation_of  # noqa: PLC0415  same

    with ErasedTenants(log) as erased:
        erased.poll()
        known = dict(erased.latest)
    for record in records:
        erasure = known.get(record.key)
        if erasure is None or not covers(erasure, "", -1, 0, generation_of(record)):
            yield record


def _chain(first: LogRecord, rest: Iterator[LogRecord]) -> Iterator[LogRecord]:
    yield first
    yield from rest
