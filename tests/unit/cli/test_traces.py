"""`adaptive traces`: what operators see, take out and send again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models

from adaptive.contracts import (
    TOPIC_TENANT_ERASED,
    TOPIC_TRACE_RECORDED,
    Arm,
    TenantErased,
    TraceRecord,
    VerifyStep,
    decode,
    encode,
)
from collectors.erasure import watermarks
from collectors.open import open_transport
from collectors.resend import SessionDigest
from collectors.transport import OutgoingRecord
from tests.unit.cli.traces import HEADERS, consent, send, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typer.testing import Result

    from collectors.transport import LogRecord, Transport

HOUR = 3600.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    """URL of the default log."""
    return f"sqlite:///{tmp_path}/.adaptive/log.db"


@pytest.fixture
def log(url: str) -> Iterator[Transport]:
    """A log of two tenants."""
    transport = open_transport(url)
    now = time.time()
    send(
        transport,
        trace(created_at=now - 3 * HOUR),
        trace("acme", "r2", arm=Arm.ADAPTER, version=3, accepted=4, created_at=now - HOUR),
        trace("acme", "r2", 1, arm=Arm.ADAPTER, version=3, accepted=3, created_at=now - HOUR),
        trace("other", "r3", created_at=now),
    )
    transport.send(TOPIC_TRACE_RECORDED, "acme", b"\xc1")
    yield transport
    transport.close()


def erase(transport: Transport, tenant: str) -> None:
    """Announce that a tenant was erased; its bytes are still there, as on Kafka."""
    marks = watermarks(transport, [TOPIC_TRACE_RECORDED])
    erased = TenantErased(tenant, "e", generation=-1, erased_at=0.0, watermarks=marks)
    transport.send(TOPIC_TENANT_ERASED, tenant, encode(erased))


def records(transport: Transport, topic: str = TOPIC_TRACE_RECORDED) -> list[LogRecord]:
    """Everything in a topic."""
    ends = transport.end_offsets(topic)
    return [
        record
        for partition, end in ends.items()
        if end
        for record in transport.read(topic, partition, 0, end - 1)
    ]


def said(result: Result) -> Any:
    """JSON of a command that succeeded."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("log")
def test_tail_shows_one_line_per_trace_and_no_tokens(adaptive: Callable[..., Result]) -> None:
    """Newest last; arm, steps, tau; what could not be read is counted on stderr."""
    result = adaptive("traces", "tail")
    lines = result.stdout.splitlines()
    assert [line.split()[2:4] for line in lines] == [
        ["acme", "r1:0"],
        ["acme", "r2:0"],
        ["acme", "r2:1"],
        ["other", "r3:0"],
    ]
    assert "adapter@3  steps 2  drafted 8  accepted 4  tau 3.00" in lines[1]
    assert not any(str(token) in line for line in lines for token in ("[", "98"))
    assert "1 records could not be read: see 'adaptive traces dlq list'" in result.stderr
    assert len(adaptive("traces", "tail", "-n", 1).stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        (("--tenant", "other"), ["r3:0"]),
        (("--tenant", "other", "--tenant", "acme"), ["r1:0", "r2:0", "r2:1", "r3:0"]),
        (("--version", "3"), ["r2:0", "r2:1"]),
        (("--version", "0"), ["r1:0", "r3:0"]),
        (("--arm", "adapter"), ["r2:0", "r2:1"]),
        (("--request", "r1"), ["r1:0"]),
        (("--since", "2h"), ["r2:0", "r2:1", "r3:0"]),
        (("--since", "1.5h ago", "--until", "30m"), ["r2:0", "r2:1"]),
        (("--until", "2000-01-01T00:00Z"), []),
        (("--arm", "adapter", "--tenant", "other"), []),
    ],
)
@pytest.mark.usefixtures("log")
def test_filters(adaptive: Callable[..., Result], flags: tuple[str, ...], ids: list[str]) -> None:
    """By tenant, version, arm, request and time; each narrows."""
    result = adaptive("traces", "tail", "--json", *flags)
    assert [json.loads(line)["trace"]["trace_id"] for line in result.stdout.splitlines()] == ids


def test_tail_looks_as_far_back_as_a_filter_needs(adaptive: Callable[..., Result], log: Transport) -> None:
    """A tenant whose last trace lies thousands of records back is found."""
    send(log, *(trace("noise", f"n{number}") for number in range(3000)))
    shown = adaptive("traces", "tail", "-n", 2, "--tenant", "acme").stdout
    assert [line.split()[3] for line in shown.splitlines()] == ["r2:0", "r2:1"]


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("tail", "--since", "yesterday"), 2, ("--since 'yesterday'", "2h")),
        (("stats", "--until", "2026-13-01"), 2, ("--until '2026-13-01'",)),
        (("tail", "--since", "1h", "--until", "2h"), 2, ("--since 1h is not before --until 2h",)),
        (("export", "-", "--format", "parquet"), 2, ("Parquet needs a file",)),
        (("export", "x.jsonl", "--text"), 2, ("--text needs --tenant",)),
        (("replay",), 2, ("--to", "--force")),
        (("replay", "--to-topic", "adaptive.policy.decided.v1"), 2, ("--to-topic", "other messages")),
        (("replay", "--from", "nowhere.jsonl"), 1, ("nowhere.jsonl cannot be read",)),
        (("replay", "--to", "ftp://x"), 1, ("log_url 'ftp://x'",)),
        (("dlq", "replay"), 2, ("PARTITION:OFFSET", "--all")),
        (("dlq", "drop", "9:9"), 1, ("no dead letter 9:9", "dlq list")),
        (("dlq", "list", "--topic", "x"), 2, ("--topic x",)),
    ],
)
@pytest.mark.usefixtures("log")
def test_bad_input_is_one_clear_line(
    adaptive: Callable[..., Result], arguments: tuple[str, ...], code: int, parts: tuple[str, ...]
) -> None:
    """It names the option and the remedy."""
    result = adaptive("traces", *arguments)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.usefixtures("log")
def test_an_export_onto_a_full_disk_is_one_clear_line(
    adaptive: Callable[..., Result], tmp_path: Path, suffix: str
) -> None:
    """It says why, and leaves no half a file."""
    output = tmp_path / f"x{suffix}"
    Path(f"{output}.partial").symlink_to("/dev/full")
    result = adaptive("traces", "export", output)
    assert result.exit_code == 1, result.output
    assert result.stderr.splitlines()[0].startswith(f"error: cannot write {output} (No space left on device)")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [".adaptive"]


@pytest.mark.usefixtures("log")
def test_an_export_where_nothing_can_be_written_is_one_clear_line(
    adaptive: Callable[..., Result], tmp_path: Path
) -> None:
    """A directory that is a file, for instance."""
    (tmp_path / "file").touch()
    result = adaptive("traces", "export", tmp_path / "file" / "x.jsonl")
    assert result.exit_code == 1
    assert "error: cannot write" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.usefixtures("log")
def test_an_export_replaces_only_files(
    adaptive: Callable[..., Result], tmp_path: Path, force: tuple[str, ...]
) -> None:
    """A directory, a pipe or a device stays what it is, even for root with --force."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("directory", "pipe"):
        result = adaptive("traces", "export", tmp_path / name, "--format", "jsonl", *force)
        assert (result.exit_code, "is no regular file" in result.stderr) == (2, True), result.output
    assert (tmp_path / "directory").is_dir()
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.usefixtures("log")
def test_an_export_goes_where_a_link_points(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """The link stays."""
    (tmp_path / "there.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "there.jsonl")
    assert adaptive("traces", "export", tmp_path / "link.jsonl", "--force").exit_code == 0
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len((tmp_path / "there.jsonl").read_text().splitlines()) == 4


@pytest.mark.usefixtures("log")
def test_a_file_with_a_record_that_does_not_decode_is_one_clear_line(
    adaptive: Callable[..., Result], tmp_path: Path
) -> None:
    """As a file of a newer version may hold; it names the record, and nothing was sent."""
    adaptive("traces", "export", tmp_path / "x.jsonl")
    first, *rest = (tmp_path / "x.jsonl").read_text().splitlines()
    line = json.loads(first)
    (tmp_path / "x.jsonl").write_text("\n".join([*rest, json.dumps(line | {"value": "wWp1bms="})]))
    target = f"sqlite:///{tmp_path}/other.db"
    result = adaptive("traces", "replay", "--from", tmp_path / "x.jsonl", "--to", target)
    assert result.exit_code == 1
    assert f"the record of {line['partition']}:{line['offset']} is no trace" in result.stderr
    assert result.stderr.count("\n") == 1
    with contextlib.closing(open_transport(target)) as transport:
        assert records(transport) == []


def test_what_foreign_records_claim_is_shown_and_not_obeyed(
    adaptive: Callable[..., Result], url: str
) -> None:
    """A tenant's name is neither a style nor an order to the terminal, and any time can be shown."""
    with contextlib.closing(open_transport(url)) as transport:
        send(
            transport, trace("[/x]\x1b[31m:smile:", created_at=1e300), trace("[red]", created_at=float("nan"))
        )
    for command in ("tail", "stats"):
        result = adaptive("traces", command)
        assert result.exit_code == 0, result.output
        assert "[/x]\\x1b[31m:smile:" in result.stdout
        assert "[red]" in result.stdout


@pytest.mark.parametrize("command", ["tail", "stats", "export x", "dlq list"])
def test_looking_at_a_log_that_is_not_there_does_not_make_it(
    adaptive: Callable[..., Result], tmp_path: Path, command: str
) -> None:
    """The line says how to name the log; no file appears."""
    result = adaptive("traces", *command.split())
    assert result.exit_code == 1
    assert "there is no log at" in result.stderr
    assert "--log-url" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("log")
def test_stats_count_steps_of_each_arm(adaptive: Callable[..., Result]) -> None:
    """Tau = 1 + accepted / steps, alpha = accepted / drafted, joint acceptance per position."""
    groups = said(adaptive("traces", "stats", "--json"))
    assert [(one["tenant"], one["arm"], one["version"]) for one in groups] == [
        ("acme", "adapter", 3),
        ("acme", "turbo", 0),
        ("other", "turbo", 0),
    ]
    adapted = groups[0]
    assert (adapted["records"], adapted["requests"], adapted["verify_steps"]) == (2, 1, 4)
    assert (adapted["drafted"], adapted["accepted"]) == (16, 7)
    assert adapted["tau"] == pytest.approx(1 + 7 / 4)
    assert adapted["alpha"] == pytest.approx(7 / 16)
    assert adapted["acceptance_per_position"] == [0.5, 0.5, 0.5, 0.25]
    assert adapted["features_share"] == 0
    assert adapted["bytes"] > 100
    assert "per position".upper() in adaptive("traces", "stats").stdout
    assert [one["arm"] for one in said(adaptive("traces", "stats", "--json", "--arm", "turbo"))] == [
        "turbo"
    ] * 2


@pytest.mark.parametrize("name", ["session.jsonl", "session.parquet"])
def test_an_exported_session_replays_byte_for_byte(
    adaptive: Callable[..., Result], log: Transport, tmp_path: Path, name: str
) -> None:
    """From the file or the log itself: same keys, values and headers, one sha256, known fields or not."""
    raw: dict[str, Any] = msgspec.msgpack.decode(encode(trace("acme", "newer")))
    newer = msgspec.msgpack.encode(raw | {"field_of_the_future": [1, 2]})
    log.send(TOPIC_TRACE_RECORDED, "acme", newer, HEADERS)
    result = adaptive("traces", "export", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert "5 traces exported" in result.stderr
    from_log, from_file = f"sqlite:///{tmp_path}/a/log.db", f"sqlite:///{tmp_path}/b/log.db"
    first = said(adaptive("traces", "replay", "--to", from_log, "--json"))
    second = said(adaptive("traces", "replay", "--from", tmp_path / name, "--to", from_file, "--json"))
    assert first["records"] == second["records"] == 5
    assert first["sha256"] == second["sha256"]
    originals = [(one.key, one.value, one.headers) for one in records(log) if one.value != b"\xc1"]
    for copy in (from_log, from_file):
        transport = open_transport(copy)
        assert [(one.key, one.value, one.headers) for one in records(transport)] == originals
        transport.close()
    assert newer in [value for _, value, _ in originals]


def test_the_digest_sees_values_headers_keys_and_order() -> None:
    """Anything that would make a session another one changes its sha256; partitions do not."""

    def digest(*parts: OutgoingRecord) -> str:
        made = SessionDigest()
        for part in parts:
            made.add(part)
        return made.sha256()

    one = OutgoingRecord("t", "a", b"1", {"h": b"x"})
    two, other = OutgoingRecord("t", "a", b"2"), OutgoingRecord("t", "b", b"1")
    assert digest(one, two, other) == digest(other, one, two)
    variants = [
        digest(one, two),
        digest(two, one),
        digest(one),
        digest(OutgoingRecord("t", "a", b"1")),
        digest(OutgoingRecord("t", "b", b"1", {"h": b"x"})),
        digest(OutgoingRecord("t", "a", None, {"h": b"x"})),
    ]
    assert len(set(variants)) == len(variants)


def test_a_replay_into_its_own_topic_needs_force(adaptive: Callable[..., Result], log: Transport) -> None:
    """Also where the file hides that it came from there, or the URL is written in another way."""
    assert adaptive("traces", "export", "s.jsonl").exit_code == 0
    before = len(records(log))
    for flags in (("--from", "s.jsonl"), ("--to", "sqlite:///.adaptive/../.adaptive/log.db")):
        result = adaptive("traces", "replay", *flags)
        assert result.exit_code == 2, result.output
        assert "--force" in result.stderr
    assert len(records(log)) == before
    forced = said(adaptive("traces", "replay", "--force", "--json"))
    assert forced["records"] == 4
    assert len(records(log)) == before + 4


def test_erased_tenants_are_neither_shown_nor_sent(
    adaptive: Callable[..., Result], log: Transport, tmp_path: Path
) -> None:
    """Left out everywhere, and a file exported before their erasure does not bring them back."""
    assert adaptive("traces", "export", "before.jsonl").exit_code == 0
    erase(log, "acme")
    tailed = adaptive("traces", "tail")
    assert [line.split()[2] for line in tailed.stdout.splitlines()] == ["other"]
    assert "3 records of erased tenants left out" in tailed.stderr
    assert {one["tenant"] for one in said(adaptive("traces", "stats", "--json"))} == {"other"}
    target = f"sqlite:///{tmp_path}/copy.db"
    for flags in ((), ("--from", "before.jsonl")):
        assert said(adaptive("traces", "replay", *flags, "--to", target, "--json"))["records"] == 1
    copy = open_transport(target)
    assert {record.key for record in records(copy)} == {"other"}
    copy.close()


@pytest.mark.usefixtures("log")
def test_a_tenant_erased_where_traces_go_is_not_sent(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """The generation tells, for offsets mean nothing in another log."""
    target = f"sqlite:///{tmp_path}/copy.db"
    copy = open_transport(target)
    erased = TenantErased("acme", "e", generation=0, erased_at=0.0, watermarks=[])
    copy.send(TOPIC_TENANT_ERASED, "acme", encode(erased))
    assert said(adaptive("traces", "replay", "--to", target, "--json"))["records"] == 1
    assert {record.key for record in records(copy)} == {"other"}
    copy.close()


@pytest.mark.usefixtures("log")
def test_exports_hold_token_ids_and_every_field(adaptive: Callable[..., Result], tmp_path: Path) -> None:
    """JSON Lines decode to the trace itself; Parquet has a column per field; a file is not overwritten."""
    assert adaptive("traces", "export", "a.jsonl", "--tenant", "acme", "--no-raw").exit_code == 0
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert msgspec.convert(lines[0]["trace"], TraceRecord).output_ids == [21, 22, 23, 24]
    assert "value" not in lines[0]
    assert "text" not in lines[0]
    refused = adaptive("traces", "replay", "--from", "a.jsonl", "--to", f"sqlite:///{tmp_path}/c.db")
    assert refused.exit_code == 1
    assert "--no-raw" in refused.stderr
    assert adaptive("traces", "export", "a.parquet").exit_code == 0
    table = parquet.read_table("a.parquet")
    assert set(TraceRecord.__struct_fields__) <= set(table.column_names)
    row = table.to_pylist()[0]
    assert row["steps"][0]["drafted"] == [21, 22, 98, 99]
    assert set(row["steps"][0]) == set(VerifyStep.__struct_fields__)
    assert decode(row["log_value"], TraceRecord).trace_id == row["trace_id"]
    again = adaptive("traces", "export", "a.parquet")
    assert again.exit_code == 1
    assert "--force" in again.stderr
    assert adaptive("traces", "export", "a.parquet", "--force").exit_code == 0
    assert not list(tmp_path.glob("*.partial"))


def test_text_needs_the_consent_of_every_tenant_named(
    adaptive: Callable[..., Result], log: Transport, tmp_path: Path
) -> None:
    """Off by default and after a refusal; the line names the field to change. With consent it is decoded."""
    model = tmp_path / "model"
    model.mkdir()
    words = {f"w{number}": number for number in range(100)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(model / "tokenizer.json"))
    fingerprint = hashlib.sha256((model / "tokenizer.json").read_bytes()).hexdigest()
    send(log, trace("texty", "t1", tokenizer=fingerprint))
    export = ("traces", "export", "t.jsonl", "--text", "--model", model, "--tenant", "texty")
    for answer in (None, False):
        if answer is not None:
            consent(log, "texty", learn=answer)
        refused = adaptive(*export)
        assert refused.exit_code == 1
        assert "adaptive tenants patch texty --learn" in refused.stderr
        assert not Path("t.jsonl").exists()
    consent(log, "texty", learn=True)
    assert adaptive(*export).exit_code == 0
    line = json.loads(Path("t.jsonl").read_text())
    assert line["text"] == {"prompt": "w11 w12 w13", "output": "w21 w22 w23 w24"}
    consent(log, "other", learn=True)
    foreign = adaptive(*export[:-1], "other", "--force")
    assert foreign.exit_code == 1
    assert "another tokenizer" in foreign.stderr


def test_tail_follows_until_it_is_interrupted(log: Transport, url: str, tmp_path: Path) -> None:
    """New traces of the tenant asked for appear; Ctrl-C ends with exit code 0 and no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "adaptive.cli", "traces", "tail", "-f", "-n", "1", "--tenant", "acme"],
        env=os.environ | {"ADAPTIVE_LOG_URL": url, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    try:
        assert "r2:1" in process.stdout.readline()
        send(log, trace("other", "unseen"), trace("acme", "seen"))
        assert "seen:0" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in errors
