"""Running an update again from the log: the same traces, the same seed, the same bytes.

Everything comes from the manifest, the log and the store; neither ledger nor replay of then are needed, so it
works on another machine, and long after the replay has moved on. What cannot be had any more ends the rerun
with a reason: it never trains on something else instead.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from adaptive.contracts import TOPIC_TENANT_CHANGED, TOPIC_TRACE_RECORDED, TenantChanged, TraceRecord, decode
from collectors.erasure import ErasedTenants
from collectors.state import CompactedView
from collectors.transport import OffsetRangeError
from learners.adapters import write_challenger
from learners.features import LeftOutError
from learners.judging import judge
from learners.manifest import current_environment, sequence_sha256
from learners.replay import Replay
from learners.training import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from adaptive.contracts import AdapterReference
    from adaptive.speculator.sequences import TracedSequence
    from collectors.transport import Transport
    from learners.drafter import Drafter
    from learners.features import Assembler
    from learners.judging import Judgement
    from learners.manifest import Manifest, UsedRequest

RECORDS_PER_SIGN: Final = 500


class RerunError(Exception):
    """An update cannot be run again; the message says what is gone or has changed."""


class AdapterLoader(Protocol):
    """Where adapters that served are read from."""

    def load(self, reference: AdapterReference | None) -> dict[str, Tensor] | None:
        """Tensors of an adapter; None where it is unusable."""


class Progress(Protocol):
    """Told how far a rerun is."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` parts of a stage are through."""


@dataclass(frozen=True, eq=False)
class Rerun:
    """What a second run of an update gave."""

    adapter: Path
    adapter_sha256: str
    same_adapter: bool
    """Whether its bytes are those of the first run."""
    judgement: Judgement
    same_scores: bool
    """Whether the hold-out scores are those of the first run, to the last bit."""
    differences: list[str]
    """Of the environment; a reason why bytes may differ."""


def rerun(
    manifest: Manifest,
    *,
    transport: Transport,
    drafter: Drafter,
    assembler: Assembler,
    champions: AdapterLoader,
    directory: Path,
    progress: Progress,
) -> Rerun:
    """Train and judge an update once more; nothing is published or recorded.

    Call it in a process whose torch uses as many threads as the first run did (`Environment.threads`).

    Args:
        manifest: Of the update.
        transport: The log that its traces came from.
        drafter: Target and turbo, in the plan's precision.
        assembler: Reads features as the first run did (`Manifest.features`).
        champions: Reads the warm start and the champion of then.
        directory: Empty; for sequences, checkpoint and the adapter.
        progress: Told how far it is.

    Raises:
        RerunError: the tenant was erased or stopped learning, target or turbo are others, or traces, features
            or an adapter are no longer what or where they were.
        TransportUnavailableError, StoreUnavailableError: the log or the store is away; try again.
    """
    plan = manifest.plan
    requests = [*manifest.training, *manifest.holdout]
    _check_drafter(manifest, drafter)
    _check_consent(transport, plan.tenant)
    warm_start = None
    if manifest.warm_started:
        warm_start = _adapter(champions, plan.warm_start, "warm start")
    champion = _adapter(champions, manifest.champion, "champion") if manifest.champion else None
    replay = Replay(directory / "replay")
    segments = _segments(plan.tenant, requests, transport, progress)
    for count, request in enumerate(requests):
        progress("assembling", count, len(requests))
        replay.save(plan.tenant, request.number, _assemble(request, segments[request.request_id], assembler))
    trained = Trainer(drafter).train(
        plan,
        {request.number: request.tokens for request in manifest.training},
        load=lambda number: replay.load(plan.tenant, number),
        warm_start=warm_start,
        checkpoint=directory / "checkpoint",
        on_step=lambda step, steps: progress("training", step, steps),
    )
    adapter = directory / "adapter.safetensors"
    sha256 = write_challenger(adapter, trained.tensors, plan)
    judgement = judge(
        drafter.head,
        trained.tensors,
        champion,
        [replay.load(plan.tenant, number) for number in plan.holdout],
        champion_weight=manifest.champion_weight,
        lookahead=manifest.lookahead,
        fresh=plan.fresh_evidence,
        between=lambda: progress("evaluating", 0, 0),
    )
    return Rerun(
        adapter=adapter,
        adapter_sha256=sha256,
        same_adapter=sha256 == manifest.adapter_sha256,
        judgement=judgement,
        same_scores=_scores(judgement)
        == (manifest.turbo_score, manifest.champion_score, manifest.challenger_score),
        differences=current_environment().differences(manifest.environment),
    )


def _check_drafter(manifest: Manifest, drafter: Drafter) -> None:
    plan = manifest.plan
    for name, there, wanted in (
        ("target", drafter.target_sha256, plan.target_sha256),
        ("turbo", drafter.turbo_sha256, plan.turbo_sha256),
        ("precision", drafter.precision, plan.precision),
    ):
        if there != wanted:
            raise RerunError(
                f"{name}: this one is {there[:12]}, the update was trained on {wanted[:12]}; name that one "
                f"({'ADAPTIVE_MODEL' if name == 'target' else 'ADAPTIVE_TURBO'})"
            )


def _check_consent(transport: Transport, tenant: str) -> None:
    """Traces of a tenant who declines learning now must not be trained on again."""
    with CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged) as accounts:
        accounts.poll()
        account = accounts.latest.get(tenant)
    if account is None or not account.learn:
        raise RerunError(
            f"learn is off for tenant {tenant}: a rerun trains on its traffic too; with the tenant's consent "
            f"switch it on: `adaptive tenants patch {tenant} --learn`"
        )


def _adapter(champions: AdapterLoader, reference: AdapterReference | None, role: str) -> dict[str, Tensor]:
    tensors = champions.load(reference)
    if reference is None or tensors is None:
        name = f"{reference.tenant}@{reference.version}" if reference else "it"
        raise RerunError(
            f"{role}: {name} is no longer in the store as it was, and the result depends on it; restore it "
            "there (ADAPTIVE_STORE_URL)"
        )
    return tensors


def _assemble(
    request: UsedRequest, segments: Mapping[int, TraceRecord], assembler: Assembler
) -> TracedSequence:
    """The sequence that the update saw, checked bit by bit."""
    where = (
        f"request {request.request_id} (partition {request.partition}, offsets {request.first_offset} to "
        f"{request.last_offset})"
    )
    if not segments or sorted(segments) != list(range(len(segments))):
        raise RerunError(
            f"{where} is not in this log: it was removed there, or this is not the log that the update was "
            "trained from (ADAPTIVE_LOG_URL)"
        )
    try:
        sequence = assembler.assemble([segments[number] for number in sorted(segments)])
    except LeftOutError as error:
        raise RerunError(
            f"{where} cannot be assembled any more ({error}); features go when retention passes"
        ) from error
    if sequence_sha256(sequence) != request.sha256:
        raise RerunError(
            f"{where} is not what the update saw: its features are gone and were recomputed, or this is not "
            "the log or store that the update was trained from (ADAPTIVE_LOG_URL, ADAPTIVE_STORE_URL)"
        )
    return sequence


def _segments(
    tenant: str, requests: Sequence[UsedRequest], transport: Transport, progress: Progress
) -> Mapping[str, dict[int, TraceRecord]]:
    """Segments of every request by number, as the ledger took them in: the first of a trace_id counts."""
    found: dict[str, dict[int, TraceRecord]] = {request.request_id: {} for request in requests}
    ranges: dict[int, tuple[int, int]] = {}
    for request in requests:
        first, last = ranges.get(request.partition, (request.first_offset, request.last_offset))
        ranges[request.partition] = (min(first, request.first_offset), max(last, request.last_offset))
    with ErasedTenants(transport) as erased:
        erased.poll()
        for request in requests:
            if erased.is_erased(TOPIC_TRACE_RECORDED, request.partition, request.first_offset, tenant):
                raise _erased(tenant)
        for partition, (first, last) in sorted(ranges.items()):
            for trace, offset in _traces(tenant, transport, partition, first, last, progress):
                if trace.request_id not in found:
                    continue
                if erased.is_erased(TOPIC_TRACE_RECORDED, partition, offset, tenant, trace.generation):
                    raise _erased(tenant)
                found[trace.request_id].setdefault(trace.segment, trace)
    return found


def _traces(
    tenant: str, transport: Transport, partition: int, first: int, last: int, progress: Progress
) -> Iterator[tuple[TraceRecord, int]]:
    """A tenant's traces of a range with their offsets; records that never decoded are passed over."""
    try:
        for record in transport.read(TOPIC_TRACE_RECORDED, partition, first, last):
            if record.offset % RECORDS_PER_SIGN == 0:
                progress("reading the log", record.offset - first, last + 1 - first)
            if record.key != tenant or record.value is None:
                continue
            with contextlib.suppress(msgspec.MsgspecError):
                yield decode(record.value, TraceRecord), record.offset
    except OffsetRangeError as error:
        raise RerunError(f"its traces have left the log: {error}") from error


def _erased(tenant: str) -> RerunError:
    return RerunError(
        f"tenant {tenant} was erased: its traces, and what was learned from them, must not come back"
    )


def _scores(judgement: Judgement) -> tuple[object, object, object]:
    champion = judgement.champion
    return judgement.turbo.total, champion.total if champion else None, judgement.challenger.total
