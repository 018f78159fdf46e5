"""`adaptive traces dlq`: records that could not be read. Never prints what they hold, ids or text."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from adaptive.cli.display import AsJson, print_json, print_table, print_values, when
from adaptive.cli.errors import WRONG_USE, fail
from adaptive.cli.options import with_settings
from adaptive.cli.traces.common import LOG_FIELDS, Tenants, opened
from adaptive.contracts import DEAD_LETTER_SUFFIX, TOPIC_TRACE_RECORDED, TOPICS
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectors.dead_letters import DeadLetter, DeadLetters

app = typer.Typer(name="dlq", help="List, show, replay and drop dead letters.", no_args_is_help=True)
Topic = Annotated[str, typer.Option(help="Topic whose records could not be read.")]
Letters = Annotated[
    list[str] | None, typer.Argument(metavar="[PARTITION:OFFSET]…", help="As `dlq list` shows them.")
]
Every = Annotated[bool, typer.Option("--all", help="Every one that is not settled yet.")]


@app.command(name="list")
@with_settings(*LOG_FIELDS)
def list_letters(
    settings: Settings,
    topic: Topic = TOPIC_TRACE_RECORDED,
    tenant: Tenants = None,
    every: Annotated[bool, typer.Option("--all", help="Those replayed or dropped too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List dead letters with reason and origin, oldest first."""
    with _letters(settings, topic) as letters:
        found = [
            letter
            for letter in letters.read()
            if (every or not letter.handled) and (not tenant or letter.tenant in tenant)
        ]
    if as_json:
        print_json([_summary(letter) for letter in found])
        return
    print_table(
        ("DEAD LETTER", "TENANT", "GIVEN UP", "ORIGIN", "BYTES", "STATE", "REASON"),
        (
            (
                letter.name,
                letter.tenant,
                when(letter.at),
                f"{letter.origin_partition}:{letter.origin_offset}",
                len(letter.record.value or b""),
                letter.handled or "open",
                letter.reason,
            )
            for letter in found
        ),
    )


@app.command()
@with_settings(*LOG_FIELDS)
def show(
    settings: Settings,
    letter: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="As `dlq list` shows it.")],
    topic: Topic = TOPIC_TRACE_RECORDED,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: reason, origin, headers, and the shape of its value without what it holds."""
    with _letters(settings, topic) as letters:
        (found,) = _named(letters, [letter], every=False)
    value = found.record.value
    summary = _summary(found) | {
        "sha256": hashlib.sha256(value).hexdigest() if value is not None else None,
        "headers": sorted(found.record.headers),
        "value": _shape_of(value),
    }
    if as_json:
        print_json(summary)
        return
    shape = summary.pop("value")
    print_values(summary | {"headers": ", ".join(summary["headers"])})
    fields = shape.items() if isinstance(shape, dict) else [("value", shape)]
    for name, kind in fields:
        typer.echo(
            f"  {name}: {kind if isinstance(kind, str) else 'struct of ' + str(len(kind)) + ' fields'}"
        )


@app.command()
@with_settings(*LOG_FIELDS)
def replay(
    settings: Settings,
    names: Letters = None,
    topic: Topic = TOPIC_TRACE_RECORDED,
    every: Every = False,
) -> None:
    """Put dead letters back on the topic they came from, once, as they were; they stay listed with --all."""
    with _letters(settings, topic) as letters:
        found = _named(letters, names, every=every)
        letters.replay(found)
    typer.echo(f"{len(found)} dead letters put back on {topic}")


@app.command()
@with_settings(*LOG_FIELDS)
def drop(
    settings: Settings,
    names: Letters = None,
    topic: Topic = TOPIC_TRACE_RECORDED,
    every: Every = False,
) -> None:
    """Give dead letters up: deleted from the embedded log, on Kafka marked until retention takes them."""
    with _letters(settings, topic) as letters:
        found = _named(letters, names, every=every)
        deleted = letters.drop(found)
    state = "deleted" if deleted else "marked as dropped; their bytes go when retention passes"
    typer.echo(f"{len(found)} dead letters {state}")


@contextlib.contextmanager
def _letters(settings: Settings, topic: str) -> Iterator[DeadLetters]:
    """The dead letters of a topic of the log that the settings name."""
    from collectors.dead_letters import DeadLetters  # noqa: PLC0415  commands load what they need

    name = topic.removesuffix(DEAD_LETTER_SUFFIX)
    if name not in TOPICS:
        fail(f"--topic {topic} is no topic: use one of {', '.join(sorted(TOPICS))}", WRONG_USE)
    with opened(settings) as transport:
        yield DeadLetters(transport, name)


def _named(letters: DeadLetters, names: list[str] | None, *, every: bool) -> list[DeadLetter]:
    """Those named, or all that are not settled."""
    if every == bool(names):
        fail("name dead letters as `dlq list` shows them (PARTITION:OFFSET), or use --all", WRONG_USE)
    there = {letter.name: letter for letter in letters.read()}
    if every:
        return [letter for letter in there.values() if not letter.handled]
    for name in names or ():
        if name not in there:
            fail(f"there is no dead letter {name}: see 'adaptive traces dlq list --all'")
    return [there[name] for name in dict.fromkeys(names or ())]


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {
        "dead_letter": letter.name,
        "topic": letter.topic,
        "tenant": letter.tenant,
        "reason": letter.reason,
        "given_up_at": when(letter.at),
        "origin_topic": letter.origin_topic,
        "origin_partition": letter.origin_partition,
        "origin_offset": letter.origin_offset,
        "bytes": len(letter.record.value or b""),
        "state": letter.handled or "open",
    }


def _shape_of(value: bytes | None) -> Any:
    """Names and types of a msgpack value, one level of fields; nothing of its contents."""
    if value is None:
        return "nothing (a tombstone)"
    try:
        found = msgspec.msgpack.decode(value)
    except msgspec.DecodeError:
        return f"{len(value)} bytes that are no msgpack"
    if not isinstance(found, dict):
        return _kind(found)
    # Keys of a record that is not ours could be anybody's text.
    known = {field for message in _messages() for field in message.__struct_fields__}
    shape = {str(name): _kind(item) for name, item in found.items() if name in known}
    unknown = len(found) - len(shape)
    return shape | ({"(fields of no message)": str(unknown)} if unknown else {})


def _messages() -> tuple[type[msgspec.Struct], ...]:
    from adaptive import contracts  # noqa: PLC0415  as above

    found: tuple[type[msgspec.Struct], ...] = contracts.Message.__args__
    return found


def _kind(item: Any) -> str:
    sized = isinstance(item, str | bytes | list | dict)
    return f"{type(item).__name__} of {len(item)}" if sized else type(item).__name__
