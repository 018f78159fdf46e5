"""`adaptive topics`: make the log's topics, and see whether they are as the settings want them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from adaptive.cli.display import print_json, print_table
from adaptive.cli.errors import FAILED, clean_errors
from adaptive.cli.options import with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from collectors.topics import TopicState

app = typer.Typer(name="topics", help="The log's topics.", no_args_is_help=True)
FIELDS: Final = (
    "home",
    "log_url",
    "retention_days",
    "retention_bytes",
    "kafka_security_protocol",
    "kafka_ca_file",
    "kafka_certificate_file",
    "kafka_key_file",
    "kafka_sasl_mechanism",
    "kafka_username",
    "kafka_timeout_seconds",
    "kafka_max_message_bytes",
    "kafka_partitions",
    "kafka_replication",
    "kafka_min_insync_replicas",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@with_settings(*FIELDS)
def create(
    settings: Settings,
    update: Annotated[
        bool,
        typer.Option("--update", help="Give existing topics the settings' retention and limits too."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the topics that are missing and say what differs in the others. Safe to repeat."""
    from collectors.provision import open_topic_admin, specified_topics  # noqa: PLC0415  commands load late
    from collectors.transport import TransportError  # noqa: PLC0415

    with clean_errors(TransportError), open_topic_admin(settings) as admin:
        states = admin.create(specified_topics(settings), update=update)
    _show(states, as_json)


@app.command()
@with_settings(*FIELDS)
def describe(settings: Settings, as_json: AsJson = False) -> None:
    """Show every topic and what differs from the settings; exit code 1 if one is missing."""
    from collectors.provision import open_topic_admin, specified_topics  # noqa: PLC0415  commands load late
    from collectors.transport import TransportError  # noqa: PLC0415

    with clean_errors(TransportError), open_topic_admin(settings) as admin:
        states = admin.describe(specified_topics(settings))
    _show(states, as_json)
    if not all(state.partitions for state in states):
        raise typer.Exit(FAILED)


def _show(states: list[TopicState], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "topic": state.name,
                    "partitions": state.partitions,
                    "created": state.created,
                    "updated": state.updated,
                    "differences": list(state.differences),
                }
                for state in states
            ]
        )
        return
    print_table(
        ("topic", "partitions", "state"),
        [(state.name, state.partitions, _in_words(state)) for state in states],
    )


def _in_words(state: TopicState) -> str:
    done = "created" if state.created else "updated" if state.updated else ""
    return "; ".join(part for part in (done, *state.differences) if part) or "as specified"
