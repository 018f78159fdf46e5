"""`adaptive policy`: what other policies would have earned on recorded traffic."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.display import print_json, print_table
from adaptive.cli.errors import clean_errors, fail
from adaptive.cli.options import with_settings
from adaptive.cli.traces.common import LOG_FIELDS, opened
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from adaptive.contracts import ArmScored
    from collectors.transport import LogRecord

app = typer.Typer(name="policy", help="Compare policies on recorded traffic.", no_args_is_help=True)


@app.callback()
def _main() -> None:
    """Keep `replay` a command of its own while it is the only one."""


@app.command()
@with_settings(*LOG_FIELDS)
def replay(
    settings: Settings,
    tenant: Annotated[str, typer.Option(help="Whose traffic.")],
    traces: Annotated[
        Path | None,
        typer.Option(
            help="ArmScored messages, one JSON object a line; default: what learners scored, from the log.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    plain_ms: Annotated[
        float, typer.Option(min=0.001, help="Milliseconds of a verify step without drafts, per request.")
    ] = 31.0,
    draft_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds that each draft token adds, per request.")
    ] = 2.7,
    seed: Annotated[int, typer.Option(min=0, help="Of the bandits' chance.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Walk the policy in service, three bandits and every fixed arm over a tenant's scored traces.

    Regret is the share of the best fixed arm's tokens per second that a policy missed. Default costs are
    the demo target's on two CPU cores. Only traces that score the arms of the newest trace count.
    """
    from controller.goodput import StepCosts, arm_seconds  # noqa: PLC0415  commands load what they need
    from controller.replaying import ScoredTrace, compare, policies  # noqa: PLC0415  same

    costs = StepCosts(plain_ms / 1e3, draft_ms / 1e3)
    if traces is not None:
        found = list(_of_tenant(_from_file(traces), tenant))
    else:
        found = list(_of_tenant(_from_log(settings), tenant))
    found.sort(key=lambda scored: scored.scored_at)
    walked = [
        ScoredTrace(max(score.verify_steps + score.accepted for score in scored.scores), seconds)
        for scored in found
        if (seconds := arm_seconds(scored, costs))
    ]
    if not walked:
        where = str(traces) if traces is not None else "the log"
        fail(f"no scored trace of tenant {tenant!r} in {where}: learners write them once `learn` is on")
    newest = walked[-1].seconds.keys()
    walked = [trace for trace in walked if trace.seconds.keys() == newest]
    outcomes = compare(walked, policies(seed))
    if as_json:
        print_json(
            {
                "tenant": tenant,
                "traces": len(walked),
                "policies": {
                    name: {"tokens_per_second": outcome.goodput, "regret": outcome.regret}
                    for name, outcome in outcomes.items()
                },
            }
        )
        return
    print_table(
        ("POLICY", "TOKENS/S", "REGRET"),
        ((name, outcome.goodput, f"{outcome.regret:+.2%}") for name, outcome in outcomes.items()),
    )


def _of_tenant(scored: Iterable[ArmScored], tenant: str) -> Iterator[ArmScored]:
    """The tenant's messages, each trace once (the log delivers at least once)."""
    seen = set()
    for message in scored:
        if message.tenant == tenant and message.trace_id not in seen:
            seen.add(message.trace_id)
            yield message


def _from_file(path: Path) -> Iterator[ArmScored]:
    import msgspec  # noqa: PLC0415  commands load what they need

    from adaptive.contracts import ArmScored  # noqa: PLC0415  same

    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield msgspec.json.decode(line, type=ArmScored)
            except msgspec.DecodeError as error:
                fail(f"{path}, line {number}: {error}: each line must be an ArmScored message as JSON")


def _from_log(settings: Settings) -> Iterator[ArmScored]:
    from adaptive.contracts import TOPIC_ARM_SCORED  # noqa: PLC0415  commands load what they need
    from collectors.erasure import ErasedTenants  # noqa: PLC0415  same
    from collectors.inspection import batches  # noqa: PLC0415  same
    from collectors.transport import TransportError  # noqa: PLC0415  same

    with clean_errors(TransportError), opened(settings) as transport, ErasedTenants(transport) as erased:
        erased.poll()
        consumer = transport.consumer([TOPIC_ARM_SCORED], None)
        try:
            for records, _ in batches(consumer, TOPIC_ARM_SCORED, transport.end_offsets(TOPIC_ARM_SCORED)):
                for record in records:
                    scored = _read(record)
                    if scored is not None and not erased.is_erased(
                        record.topic, record.partition, record.offset, scored.tenant, scored.generation
                    ):
                        yield scored
        finally:
            consumer.close()


def _read(record: LogRecord) -> ArmScored | None:
    """None for a record that cannot be read: the controller sends it to the dead letters."""
    import msgspec  # noqa: PLC0415  commands load what they need

    from adaptive.contracts import ArmScored, decode  # noqa: PLC0415  same

    if record.value is None:
        return None
    try:
        return decode(record.value, ArmScored)
    except msgspec.MsgspecError:
        return None
