"""What one engine step drafts: the choice per request, the passes the batch runs and the load floor.

The proposer drives one `DraftingStep` per engine step: `first` after the drafter's first pass, `another`
before each later one, `add` after it, and `finish` for the drafts. Whatever is decided here depends on text
that is final, on draft distributions and on measured times, never on a random number of the sampler, so
outputs keep the target's distribution.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from adaptive.contracts import Arm
from adaptive.engine.choice import Costs
from adaptive.engine.lookahead import LoadFloor, Outlook, marginal_seconds
from adaptive.engine.ngram import Source
from adaptive.engine.preference import DrafterPreference
from adaptive.engine.slots import TURBO_SLOT
from adaptive.engine.survival import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.engine.choice import DraftChoice, Plan
    from adaptive.engine.config import EngineConfig
    from adaptive.engine.cost import CostModel
    from adaptive.engine.state import ActiveRequest

_DECISION_SHARE: Final = 0.005
"""Most share of a step that looking for copies may take while the drafter is off."""


@dataclasses.dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts of one request for the next verify step."""

    tokens: list[int]
    arm: Arm
    version: int
    confidences: list[float]
    early: bool
    """Whether there could have been more, which would not have paid."""


@dataclasses.dataclass(slots=True)
class _Row:
    """One request that may draft in this step."""

    index: int
    request_id: str
    request: ActiveRequest
    most_drafted: int
    most_copied: int
    arm: Arm
    version: int
    """Of the model that drafts: the request's adapter, or turbo."""
    plan: Plan | None = None
    drafts: list[Draft] = dataclasses.field(default_factory=list)

    @property
    def fixed(self) -> bool:
        return self.request.fixed

    @property
    def by_model(self) -> bool:
        return self.plan is None or self.plan.candidate is None


class DraftingStep:
    """One step of a batch, from the first pass to its drafts."""

    def __init__(
        self,
        owner: Speculation,
        batch: Sequence[ActiveRequest],
        request_ids: Sequence[str],
        emitted: Sequence[Sequence[int]],
        context: float,
    ) -> None:
        """Look at a batch after its tokens were sampled.

        Args:
            owner: of this engine.
            batch: its requests.
            request_ids: their ids, in the same order.
            emitted: per request the tokens it emitted; empty for a partial prefill.
            context: mean context length.
        """
        self._owner = owner
        self._batch = batch
        config = owner.config
        self.rows: list[_Row] = []
        for index, request in enumerate(batch):
            if request.lookahead > 0 and emitted[index]:
                copies = bool(request.plan.prediction) or (config.ngram and request.plan.ngram)
                arm, version = owner.drafter(request_ids[index], request)
                self.rows.append(
                    _Row(
                        index,
                        request_ids[index],
                        request,
                        min(request.lookahead, config.lookahead),
                        request.lookahead if copies and not request.fixed else 0,
                        arm,
                        version,
                    )
                )
        tenants = Counter(row.request.plan.tenant for row in self.rows)
        self.forecast = owner.outlook.forecast(owner.costs, tenants, max(len(batch), 1), context)
        self._later_pass = owner.costs.next_pass_seconds(len(batch))
        self._costs = self._price(context) if config.confidence_stop else None

    @property
    def passes(self) -> int:
        """Most passes that any row may want."""
        return max((row.most_drafted for row in self.rows), default=0)

    @property
    def slots(self) -> tuple[int, ...]:
        """Row of the adapter buffers that drafts, per request of the batch."""
        slots = [request.slot for request in self._batch]
        for row in self.rows:
            if row.arm is not Arm.ADAPTER:
                slots[row.index] = TURBO_SLOT
        return tuple(slots)

    def _price(self, context: float) -> Costs:
        costs, rows, others = self._owner.costs, len(self._batch), len(self._batch)
        if len(self.rows) > 1:
            # The rows' drafts share the step: each is priced in the middle of what all are expected to add.
            others += round(self.forecast.drafts / 2)
            width = max(len(self.rows), round(self.forecast.drafts / 2))
            each = marginal_seconds(costs, others, context, width)
            verify = [each * drafts for drafts in range(self._owner.most + 1)]
        else:
            base = costs.target_seconds(rows)
            token = costs.token_seconds(context)
            verify = [
                costs.target_seconds(rows + drafts) - base + token * drafts
                for drafts in range(self._owner.most + 1)
            ]
        return Costs(verify, self._later_pass / max(len(self.rows), 1), self.forecast.rate)

    def first(self, tokens: Sequence[int], log_odds: Sequence[float]) -> None:
        """Choose per row, knowing what the first pass drafted for every row of the batch."""
        for row in self.rows:
            draft = Draft(tokens[row.index], log_odds[row.index])
            row.drafts.append(draft)
            row.plan = self._plan(row, draft)
            if row.request.arm is Arm.ADAPTER:
                self._owner.first_drafts[row.request_id] = (row.arm is Arm.ADAPTER, draft.token)

    def _plan(self, row: _Row, draft: Draft | None) -> Plan:
        free = self._costs is None or row.fixed
        return self._owner.choice.plan(
            row.request_id,
            draft,
            self._owner.no_costs if free or self._costs is None else self._costs,
            most_drafted=row.most_drafted if draft is not None else 0,
            most_copied=row.most_copied,
        )

    def another(self) -> bool:
        """Whether the batch should run one pass more."""
        gain = 0.0
        for row in self.rows:
            if not row.by_model or len(row.drafts) >= row.most_drafted:
                continue
            if row.fixed or self._costs is None:
                return True
            gain += max(
                self._owner.choice.gain(row.request_id, self._costs, most_drafted=row.most_drafted), 0.0
            )
        return self._costs is not None and gain > self._costs.rate * self._later_pass

    def add(self, tokens: Sequence[int], log_odds: Sequence[float]) -> None:
        """Note what a later pass drafted for every row of the batch."""
        for row in self.rows:
            # A pass drafts for all rows: one that did not ask for it may find that it pays, or learn from it.
            if row.by_model and len(row.drafts) < row.most_drafted:
                draft = Draft(tokens[row.index], log_odds[row.index])
                row.drafts.append(draft)
                self._owner.choice.add(row.request_id, draft)

    def copy_only(self) -> None:
        """Choose without the drafter."""
        for row in self.rows:
            if row.most_copied:
                row.plan = self._plan(row, None)

    def finish(self) -> list[Drafted]:
        """The drafts, per request of the batch."""
        made = [Drafted([], request.arm, request.version, [], early=False) for request in self._batch]
        for row in self.rows:
            made[row.index] = self._cut(row)
            if row.plan is not None and row.drafts:
                self._owner.outlook.note(row.request.plan.tenant, row.plan.survivals)
        return made

    def _cut(self, row: _Row) -> Drafted:
        candidate = row.plan.candidate if row.plan is not None else None
        if row.plan is not None and candidate is not None:
            arm = Arm.PREDICTION if candidate.source is Source.PREDICTION else Arm.NGRAM
            tokens = list(candidate.tokens[: row.plan.length])
            return Drafted(tokens, arm, 0, [], early=len(tokens) < len(candidate.tokens))
        length = len(row.drafts)
        if self._costs is not None and not row.fixed and row.drafts:
            length = self._owner.choice.length(row.request_id, self._costs)
        kept = row.drafts[:length]
        return Drafted(
            [draft.token for draft in kept],
            row.arm,
            row.version,
            [draft.log_odds for draft in kept],
            early=bool(row.drafts) and length < row.most_drafted,
        )


class Speculation:
    """Choice, costs, outlook and floor of one engine."""

    def __init__(self, config: EngineConfig, most: int, costs: CostModel, choice: DraftChoice) -> None:
        """Put the parts together.

        Args:
            config: of the engine.
            most: K, the most draft tokens of any verify step.
            costs: profiled.
            choice: judges drafts and copies.
        """
        self.config = config
        self.most = most
        self.costs = costs
        self.choice = choice
        self.outlook = Outlook(most)
        self.floor = LoadFloor()
        self.preference = DrafterPreference()
        self.first_drafts: dict[str, tuple[bool, int]] = {}
        """Of requests with an adapter: whether it drafted in the last step, and the first token drafted."""
        self.no_costs = Costs([0.0] * (most + 1), 0.0, 0.0)
        self.steps = 0
        """Steps that decoded at least one request which may speculate."""
        self.floor_steps = 0
        """Of `steps`, those without the drafter."""
        self._looking = 0.0
        """Share of a step that looking for copies takes while the drafter is off."""
        self._skipped = 0

    # -- requests ------------------------------------------------------------------------------------------

    def begin(
        self, request_id: str, request: ActiveRequest, prompt_ids: Sequence[int], temperature: float
    ) -> None:
        """Admit a request, or note that it drafts with another arm from now on."""
        if request.lookahead > 0:
            self.choice.begin(
                request_id,
                request.plan.tenant,
                prompt_ids,
                adapter=request.arm is Arm.ADAPTER,
                temperature=temperature,
                prediction_ids=request.plan.prediction or None,
            )

    def end(self, request_id: str, request: ActiveRequest) -> None:
        """A request ended; its answer enters its tenant's history if its n-gram arm is on."""
        self.first_drafts.pop(request_id, None)
        self.choice.end(request_id, remember=self.config.ngram and request.plan.ngram)

    def forget(self, tenant: str) -> None:
        """Drop everything of a tenant."""
        self.choice.forget(tenant)
        self.preference.forget(tenant)
        self.outlook.forget(tenant)

    def drafter(self, request_id: str, request: ActiveRequest) -> tuple[Arm, int]:
        """Which model drafts for a request in this step: its adapter, or turbo where that is better."""
        if request.arm is not Arm.ADAPTER or request.fixed:
            return request.arm, request.version
        adapter = self.preference.use_adapter(request.plan.tenant, request.version)
        self.choice.begin(request_id, request.plan.tenant, (), adapter=adapter, temperature=0.0)
        return (Arm.ADAPTER, request.version) if adapter else (Arm.TURBO, 0)

    # -- steps ---------------------------------------------------------------------------------------------

    def start(
        self,
        batch: Sequence[ActiveRequest],
        request_ids: Sequence[str],
        emitted: Sequence[Sequence[int]],
        context: float,
    ) -> DraftingStep:
        """Learn from what a step emitted and begin drafting for the next (see `DraftingStep`)."""
        for request, request_id, tokens in zip(batch, request_ids, emitted, strict=True):
            self.choice.verified(request_id, tokens)
            first = self.first_drafts.pop(request_id, None)
            if first is not None and tokens and request.arm is Arm.ADAPTER:
                by_adapter, token = first
                self.preference.observe(
                    request.plan.tenant, request.version, adapter=by_adapter, confirmed=tokens[0] == token
                )
        return DraftingStep(self, batch, request_ids, emitted, context)

    def without_drafter(self, step: DraftingStep) -> list[Drafted]:
        """The copies that pay in a step that leaves the drafter out, looked for while that costs little."""
        self._skipped += 1
        if self._skipped * _DECISION_SHARE >= self._looking:
            self._skipped = 0
            started = time.perf_counter()
            step.copy_only()
            if self._batch_seconds(step) > 0:
                share = (time.perf_counter() - started) / self._batch_seconds(step)
                self._looking += 0.1 * (share - self._looking)
        return step.finish()

    def _batch_seconds(self, step: DraftingStep) -> float:
        return self.costs.target_seconds(max(len(step.rows), 1))

    def decide(self, step: DraftingStep, *, drafter_off: bool) -> bool:
        """Whether the next step leaves the drafter out.

        Args:
            step: the one that ends.
            drafter_off: whether it left the drafter out itself.
        """
        if not step.rows:
            return drafter_off
        self.steps += 1
        self.floor_steps += drafter_off
        if not self.config.load_floor or any(row.request.plan.fixed for row in step.rows):
            return False
        return self.floor.step(step.forecast.speedup)

    def info(self) -> dict[str, Any]:
        """Costs, floor and calibration errors as plain values."""
        return {
            "cost": self.costs.info(),
            "steps": self.steps,
            "floor_steps": self.floor_steps,
            "calibration_error": {
                tenant: self.choice.calibration.error(tenant) for tenant in self.choice.calibration.errors()
            },
        }
