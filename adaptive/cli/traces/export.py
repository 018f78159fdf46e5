"""`adaptive traces export`: traces as JSON Lines or Parquet."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.errors import WRONG_USE, fail
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
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adaptive.contracts import TraceRecord
    from collectors.trace_files import Text, TraceWriter
    from collectors.transport import Transport


class Format(enum.StrEnum):
    """Of the file."""

    JSONL = "jsonl"
    PARQUET = "parquet"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_settings(*LOG_FIELDS, "model")(export))


def export(
    settings: Settings,
    output: Annotated[Path, typer.Argument(help="File to write; - is stdout (JSON Lines only).")],
    file_format: Annotated[
        Format | None, typer.Option("--format", help="Default: by the file's ending, else jsonl.")
    ] = None,
    tenant: Tenants = None,
    request: Requests = None,
    version: Versions = None,
    arm: Arms = None,
    since: Since = None,
    until: Until = None,
    raw: Annotated[
        bool, typer.Option(help="Keep the records' own bytes, so that the file can be replayed.")
    ] = True,
    text: Annotated[
        bool,
        typer.Option("--text", help="Add the text. Needs --tenant, and `learn` on for each tenant named."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write traces to a file: token ids, drafts, what was accepted, by whom; text only with --text."""
    from collectors.inspection import TraceReader  # noqa: PLC0415  commands load what they need

    to_stdout = str(output) == "-"
    kind = file_format or (Format.PARQUET if output.suffix == ".parquet" else Format.JSONL)
    if kind is Format.PARQUET:
        if to_stdout:
            fail("OUTPUT -: Parquet needs a file; name one, or use --format jsonl", WRONG_USE)
        with needs("learn"):
            import pyarrow  # noqa: F401, ICN001, PLC0415  fail before anything is read
    if not to_stdout:
        output = _checked(output, force=force)
    if text and not tenant:
        fail("--text needs --tenant: name the tenants whose text you may see", WRONG_USE)
    chosen = selection(tenant, version, arm, since, until, request)
    with opened(settings) as transport, TraceReader(transport) as reader:
        decode = _decoder(settings, transport, tenant or []) if text else None
        partial = output if to_stdout else output.with_name(output.name + ".partial")
        count = 0
        with _writing(output):
            try:
                with progress("exporting") as show:
                    writer, finish = _writer(partial, kind, raw=raw, text=text, to_stdout=to_stdout)
                    try:
                        for found in reader.scan(chosen, show):
                            writer.write(found, decode(found.trace) if decode else None)
                            count += 1
                    finally:
                        finish()
                if not to_stdout:
                    partial.replace(output)
            finally:
                if not to_stdout:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        partial.unlink()
        report_passed_over(reader)
    typer.echo(f"{count} traces exported{'' if to_stdout else f' to {output}'}", err=True)


def _checked(output: Path, *, force: bool) -> Path:
    """The file behind links; nothing else, such as a device or a directory, is ever replaced."""
    with _writing(output):
        behind = Path(os.path.realpath(output))
        if not behind.exists():
            return behind
        if not behind.is_file():
            fail(f"{output} is no regular file: name a file, or - for stdout", WRONG_USE)
    if not force:
        fail(f"{output} exists: name another file, or replace it with --force")
    return behind


@contextlib.contextmanager
def _writing(output: Path) -> Iterator[None]:
    """One clear line where the output cannot be written; a reader that went away (`| head`) is no fault."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        where = "stdout" if str(output) == "-" else str(output)
        reason = os.strerror(error.errno) if error.errno else str(error)
        fail(f"cannot write {where} ({reason}): free space there, or name a file that can be written")


def _writer(
    path: Path, kind: Format, *, raw: bool, text: bool, to_stdout: bool
) -> tuple[TraceWriter, Callable[[], None]]:
    """A writer and what finishes it."""
    if not to_stdout:
        path.parent.mkdir(parents=True, exist_ok=True)
    if kind is Format.PARQUET:
        from collectors.trace_parquet import ParquetWriter  # noqa: PLC0415  needs pyarrow

        parquet = ParquetWriter(path, raw=raw, text=text)
        return parquet, parquet.close
    from collectors.trace_files import JsonLinesWriter  # noqa: PLC0415  commands load what they need

    file = sys.stdout.buffer if to_stdout else path.open("wb")
    writer = JsonLinesWriter(file, raw=raw)

    def finish() -> None:
        with contextlib.nullcontext() if to_stdout else file:
            writer.close()

    return writer, finish


def _decoder(settings: Settings, transport: Transport, tenants: list[str]) -> Callable[[TraceRecord], Text]:
    """What turns token ids into text, after every tenant's consent was looked up."""
    import hashlib  # noqa: PLC0415  commands load what they need

    from adaptive.contracts import TOPIC_TENANT_CHANGED, TenantChanged  # noqa: PLC0415  same
    from adaptive.models import model_directory  # noqa: PLC0415  same
    from collectors.state import CompactedView  # noqa: PLC0415  same
    from collectors.trace_files import Text  # noqa: PLC0415  same

    with CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged) as accounts:
        accounts.poll()
        for tenant in tenants:
            account = accounts.latest.get(tenant)
            if account is None or not account.learn:
                fail(
                    f"--text: tenant {tenant} has not consented, its `learn` is off: with its consent switch "
                    f"that on with 'adaptive tenants patch {tenant} --learn', or export without --text"
                )
    named = Path(settings.model)
    file = (named if named.is_dir() else model_directory(settings.model, settings.home)) / "tokenizer.json"
    if not file.is_file():
        fail(f"--text: {file} is not there: name the served model with --model, or prepare it")
    with needs("serving-cpu or serving-gpu"):
        from tokenizers import Tokenizer  # noqa: PLC0415  as above
    tokenizer = Tokenizer.from_file(str(file))
    fingerprint = hashlib.sha256(file.read_bytes()).hexdigest()

    def decode(trace: TraceRecord) -> Text:
        if trace.tokenizer_sha256 != fingerprint:
            fail(
                f"--text: trace {trace.trace_id} was made with another tokenizer than {file}: name the model "
                "that served it with --model, or choose other traces with --since"
            )
        prompt, output = (
            tokenizer.decode(ids, skip_special_tokens=False) for ids in (trace.prompt_ids, trace.output_ids)
        )
        return Text(prompt, output)

    return decode
