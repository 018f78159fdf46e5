"""What the worker knows about its requests, adapters and counters, apart from any runner.

The V1 runner calls `begin`, `plan_batch`, `record` and `finish` once per step; the worker's RPC methods call
the rest, always between two steps.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from adaptive.contracts import Arm, SamplingSummary, SlotState
from adaptive.engine.counters import Counters
from adaptive.engine.recorder import FeatureRows, Fingerprints, RequestRecorder, Segment
from adaptive.engine.request import RequestPlan
from adaptive.engine.slots import TURBO_SLOT, SlotTable, owned_by, owner
from adaptive.engine.staging import StagedAdapters

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from vllm import SamplingParams

    from adaptive.engine.adapters import AdapterBuffers
    from adaptive.engine.capture import TracePublisher
    from adaptive.engine.config import EngineConfig
    from adaptive.engine.speculation import Drafted, Speculation
    from adaptive.speculator.config import SpeculatorConfig

MAX_PAUSES: Final = 1000


@dataclasses.dataclass(slots=True)
class ActiveRequest:
    """One request in flight."""

    plan: RequestPlan
    arm: Arm
    slot: int
    version: int
    lookahead: int
    recorder: RequestRecorder | None
    drafted_by: tuple[Arm, int]
    """Arm and version of the drafts that the next step verifies."""
    confidences: list[float] = dataclasses.field(default_factory=list)
    fixed: bool = False
    """Whether it always drafts with its arm up to the cap."""
    early: bool = False
    """Whether more drafts could have been made for the next step, which would not have paid."""
    features: bool = False
    """Whether its feature rows are kept."""


class EngineState:
    """Requests in flight, resident adapters, counters and the capture of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        buffers: AdapterBuffers,
        speculator: SpeculatorConfig,
        speculation: Speculation,
        publisher: TracePublisher | None,
    ) -> None:
        self.config = config
        self.speculation = speculation
        self.buffers = buffers
        self.lookahead = speculation.most
        self.publisher = publisher
        self.slots = SlotTable(buffers.slots, config.slot_residence_seconds)
        self.counters = Counters(speculation.most)
        self.staged = StagedAdapters(speculator, buffers.rank, config.target_sha256, config.turbo_sha256)
        self.requests: dict[str, ActiveRequest] = {}
        self.pauses: deque[float] = deque(maxlen=MAX_PAUSES)
        self._withheld: set[str] = set()
        self._forgotten: dict[str, int] = {}
        """Erased tenants, with the newest generation of theirs that is."""
        self._fingerprints = Fingerprints(config.target_sha256, config.turbo_sha256, config.tokenizer_sha256)

    # -- requests ------------------------------------------------------------------------------------------

    def begin(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Admit a request: fix its slot and version, and start recording it where its tenant consented."""
        if request_id in self.requests:  # resumed after a preemption: it keeps its slot
            return
        plan = RequestPlan.of(params)
        if plan.generation <= self._forgotten.get(plan.tenant, -1):
            # It was admitted before the endpoint heard of the erasure; nobody has an adapter.
            plan = dataclasses.replace(plan, tenant="", learn=False, share=False)
        slot, version = self._acquire(plan) if plan.arm is Arm.ADAPTER else (TURBO_SLOT, 0)
        arm = Arm.TURBO if plan.arm is Arm.ADAPTER and slot == TURBO_SLOT else plan.arm
        recorder = None
        learn = plan.learn and plan.tenant not in self._withheld
        if self.publisher is not None and learn and self.publisher.take_request():
            stop_ids = frozenset() if params.ignore_eos else frozenset(params.all_stop_token_ids)
            stop_ids |= frozenset(params.stop_token_ids or ())
            recorder = RequestRecorder(
                plan,
                request_id,  # the engine's own: the answers of one client request (n > 1) must not share it
                prompt_ids,
                SamplingSummary(
                    temperature=params.temperature,
                    top_p=params.top_p,
                    top_k=max(params.top_k, 0),
                    seed=params.seed,
                    max_tokens=params.max_tokens,
                ),
                self._fingerprints,
                stop_ids.__contains__,
            )
        request = self.requests[request_id] = ActiveRequest(
            plan,
            arm,
            slot,
            version,
            plan.capped_lookahead(self.lookahead),
            recorder,
            drafted_by=(arm, version),
            # Drafts use up a seeded request's random numbers: the same seed gives the same answer only where
            # the same drafts are made, whatever was measured or learned meanwhile.
            fixed=plan.fixed or (params.seed is not None and params.temperature > 0),
            features=recorder is not None and plan.features and self._may_keep_features(),
        )
        self.speculation.begin(request_id, request, prompt_ids, params.temperature)
        self.counters.of(plan.tenant, arm, version).requests += 1

    def finish(self, request_id: str) -> None:
        """A request ended (finished or aborted): release its slot and publish its last segment."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return
        self.slots.release(request.slot)
        self.speculation.end(request_id, request)
        if request.recorder is not None:
            self._publish(request.recorder.cut(finished=True))

    def plan_batch(self, request_ids: Sequence[str]) -> list[ActiveRequest]:
        """The requests of a batch, in its order."""
        return [self.requests[request_id] for request_id in request_ids]

    def drafted(self, batch: Sequence[ActiveRequest], drafts: Sequence[Drafted]) -> None:
        """Note who made the drafts that the next step verifies."""
        for request, made in zip(batch, drafts, strict=True):
            request.drafted_by = (made.arm, made.version)
            request.confidences = made.confidences
            request.early = made.early

    def withdraw(self, batch: Sequence[ActiveRequest]) -> None:
        """The next step verifies nothing."""
        for request in batch:
            request.drafted_by = (request.arm, request.version)
            request.confidences = []
            request.early = False

    def record(
        self,
        request: ActiveRequest,
        drafted: Sequence[int],
        emitted: Sequence[int],
        made_by: tuple[Arm, int],
        confidences: Sequence[float],
        seconds: float,
        *,
        early: bool = False,
        context: int = 0,
    ) -> None:
        """Count one request's step and note it in its trace.

        Args:
            request: the request.
            drafted: draft ids this step verified.
            emitted: accepted drafts plus the target's own token; empty for a partial prefill.
            made_by: arm and version that drafted.
            confidences: log-odds per drafted position.
            seconds: the request's share of the step's wall time.
            early: whether drafting stopped early.
            context: tokens before the step.
        """
        totals = self.counters.of(request.plan.tenant, *made_by)
        totals.engine_seconds += seconds
        totals.emitted += len(emitted)
        if not emitted:
            return
        if request.lookahead:
            self.counters.looked_ahead(totals, len(drafted))
        if drafted:
            self.counters.verify_step(totals, len(drafted), len(emitted) - 1, early=early, context=context)
        if request.recorder is not None:
            if request.recorder.full:
                # Cut before the next step, not after the last: a finished request always has a last segment.
                self._publish(request.recorder.cut(finished=False))
            request.recorder.step(*made_by, drafted, emitted, confidences)

    def keep_features(self, request: ActiveRequest, rows: FeatureRows) -> None:
        """Add feature rows to a sampled request."""
        assert request.recorder is not None
        request.recorder.rows(rows)
        if self.publisher is not None and request.recorder.row_bytes > self.publisher.most_row_bytes:
            # One long prompt must not take the memory of all others: its trace goes without features.
            request.recorder.forget_rows()
            request.features = False

    def _may_keep_features(self) -> bool:
        assert self.publisher is not None
        recorders = [request.recorder for request in self.requests.values()]
        held = sum(recorder.row_bytes for recorder in recorders if recorder is not None)
        return held <= self.publisher.most_row_bytes and self.publisher.take_features()

    def _publish(self, segment: Segment) -> None:
        if self.publisher is not None and (segment.record.output_ids or segment.record.steps):
            self.publisher.publish(segment)

    # -- consent -------------------------------------------------------------------------------------------

    def set_consent(self, tenant: str, *, learn: bool, share: bool) -> int:
        """Follow a tenant's consent, for requests in flight too.

        Without `learn` nothing of the tenant leaves this process any more: what was recorded of its requests
        in flight and what waits to be published is dropped, and requests that were admitted before the
        endpoint heard of it are not recorded. Without `share` the records to come say so.

        Returns:
            Records dropped.
        """
        if learn:
            self._withheld.discard(tenant)
        else:
            self._withheld.add(tenant)
        dropped = 0
        for request in self.requests.values():
            if request.plan.tenant != tenant or request.recorder is None:
                continue
            if not learn:
                request.recorder = None
                dropped += 1
            elif not share:
                request.recorder.withdraw_share()
        if not learn and self.publisher is not None:
            dropped += self.publisher.drop_tenant(tenant)
        return dropped

    def forget_tenant(self, tenant: str, generation: int = 0) -> dict[str, int]:
        """Drop everything of an erased tenant that this process holds; its requests in flight end on turbo.

        Whatever keeps something per tenant in the engine (calibrations, n-gram stores, …) drops it here.
        Doing it again is harmless. Requests in flight, and those that come late, go on without a name, so
        nothing counts for it again.

        Args:
            tenant: tenant id.
            generation: the newest of this name that is erased; a later tenant of the name is another one.

        Returns:
            What was dropped, by kind.
        """
        self._forgotten[tenant] = max(generation, self._forgotten.get(tenant, 0))
        dropped = {"records": self.set_consent(tenant, learn=False, share=False)}
        dropped["staged adapters"] = self.staged.forget(tenant)
        rows = [
            slot.index for slot in self.slots.occupied() if slot.tenant and owned_by(slot.tenant)[0] == tenant
        ]
        self.retire(tenant, move=False, canary=True)
        self.retire(tenant, move=True)
        for row in rows:
            self.buffers.clear(row)
        dropped["resident adapters"] = len(rows)
        self.slots.forget(tenant)
        self.slots.forget(owner(tenant, canary=True))
        for request in self.requests.values():
            if request.plan.tenant == tenant:
                request.plan = dataclasses.replace(request.plan, tenant="", learn=False, share=False)
        self.speculation.forget(tenant)
        dropped["counters"] = self.counters.forget(tenant)
        return dropped

    # -- adapters ------------------------------------------------------------------------------------------

    def commit(
        self,
        tenant: str,
        version: int,
        weight: float,
        *,
        move: bool,
        evict: bool = True,
        canary: bool = False,
    ) -> dict[str, Any]:
        """Write a staged adapter into a free slot and send the tenant's new requests to it.

        Args:
            tenant: tenant id.
            version: staged version.
            weight: w in [0, 1].
            move: also move the tenant's adapter requests in flight (the next drafts are the new version's).
            evict: whether another tenant's idle adapter may have to go.
            canary: put it on trial beside the tenant's champion, which stays.

        Returns:
            {"slot", "pause_ms", "evicted"}: the last is the tenant that lost its adapter, if one did.

        Raises:
            AdapterError: nothing valid is staged.
            NoFreeSlotError: no slot may be overwritten; what is staged stays so.
        """
        started = time.perf_counter()
        self.staged.require(tenant, version)
        name = owner(tenant, canary=canary)
        index, evicted = self.slots.reserve(name, evict=evict)
        tensors = self.staged.take(tenant, version)
        self.buffers.write(index, tensors, weight)
        self.slots.commit(name, version, index, weight)
        if move:
            self._move(tenant)
        pause = (time.perf_counter() - started) * 1e3
        self.pauses.append(pause)
        lost = owned_by(evicted)[0] if evicted is not None else None
        return {"slot": index, "pause_ms": pause, "evicted": lost}

    def retire(self, tenant: str, *, move: bool, canary: bool = False) -> None:
        """Send the tenant back to turbo; a canary's new requests back to the champion."""
        self.slots.retire(owner(tenant, canary=canary))
        if move:
            self._move(tenant)

    def set_weight(self, tenant: str, weight: float, *, canary: bool = False) -> None:
        """Change w of the tenant's current adapter, effective with the next step."""
        slot = self.slots.set_weight(owner(tenant, canary=canary), weight)
        if slot is not None:
            self.buffers.weight[slot] = weight

    def _acquire(self, plan: RequestPlan, *, moved: bool = False) -> tuple[int, int]:
        """Slot and version of an adapter request; the champion's where its challenger is not resident."""
        trial = owner(plan.tenant, canary=True)
        if plan.canary and self.slots.current_version(trial):
            return self.slots.acquire(trial, moved=moved)
        return self.slots.acquire(plan.tenant, moved=moved)

    def _move(self, tenant: str) -> None:
        for request_id, request in self.requests.items():
            if request.plan.tenant != tenant or request.plan.arm is not Arm.ADAPTER:
                continue
            old = request.slot
            request.slot, request.version = self._acquire(request.plan, moved=True)
            request.arm = Arm.ADAPTER if request.slot != TURBO_SLOT else Arm.TURBO
            self.slots.release(old)
            self.speculation.begin(request_id, request, (), 0.0)

    def info(self) -> dict[str, Any]:
        """Slots, counters, pauses and capture statistics as plain values."""
        statistics = self.publisher.statistics() if self.publisher is not None else {}
        return {
            "counters": msgspec.to_builtins(self.counters.snapshot()),
            "slots": [
                msgspec.to_builtins(
                    SlotState(
                        slot=slot.index,
                        tenant=owned_by(slot.tenant or "")[0],
                        version=slot.version,
                        weight=slot.weight,
                        requests=slot.requests,
                        canary=owned_by(slot.tenant or "")[1],
                    )
                )
                for slot in self.slots.occupied()
            ],
            "slot_usage": msgspec.to_builtins(self.slots.usage()),
            "requests": len(self.requests),
            "pauses_ms": list(self.pauses),
            "capture": statistics,
            **self.speculation.info(),
        }


def feature_rows(
    start: int, begin: int, count: int, auxiliary: Sequence[torch.Tensor], last_hidden: torch.Tensor
) -> FeatureRows:
    """Copy `count` rows of a step's flat batch.

    Args:
        start: position of the first row in its request.
        begin: index of that row in the flat batch.
        count: rows.
        auxiliary: per feature layer [tokens, hidden].
        last_hidden: [tokens, hidden], after the final norm.
    """
    import torch  # noqa: PLC0415  the rest of this module is pure bookkeeping

    rows = slice(begin, begin + count)
    return FeatureRows(
        start, torch.cat([layer[rows] for layer in auxiliary], dim=-1), last_hidden[rows].clone()
    )
