"""Which drafter a request takes in the next verify step, and how far it drafts.

The value of drafting is what it is expected to accept less what its time would have earned otherwise:
E[accepted] - rate * seconds, with `rate` the tokens per second that the engine makes now. Maximising it step
by step maximises tokens per second (Dinkelbach 1967). Costs are plain numbers that the caller measured.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from adaptive.engine.ngram import NOBODY
from adaptive.engine.survival import Draft, Judge, ahead, copied, drafted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.engine.calibration import Calibration
    from adaptive.engine.ngram import Candidate, NgramDrafter
    from adaptive.engine.survival import Row


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """What drafting costs this request now, in seconds; the drafter's first pass has been run already.

    Attributes:
        verify: verify[k]: the step's time with k draft tokens of this request, less that without any.
        draft_pass: One more pass of the drafter, as far as this request is the reason for it.
        rate: Tokens per second and request that the engine makes now.
    """

    verify: Sequence[float]
    draft_pass: float
    rate: float


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a request drafts in this step.

    Attributes:
        candidate: The continuation to copy; None: the model goes on drafting.
        length: Draft tokens: of the candidate, cut; of the model, as many as look worth while now
            (`DraftChoice.pays` decides again after each).
        value: Expected accepted tokens, net of cost.
        survivals: P(the first i + 1 tokens are all accepted), uncut.
    """

    candidate: Candidate | None
    length: int
    value: float
    survivals: Sequence[float] = ()


def joint(survivals: Sequence[float]) -> list[float]:
    """P(the first i + 1 tokens are all accepted) from conditional survivals."""
    out, alive = [], 1.0
    for survival in survivals:
        alive *= survival
        out.append(alive)
    return out


def best_length(survivals: Sequence[float], seconds: Sequence[float], rate: float) -> tuple[int, float]:
    """Where to cut a chain.

    Args:
        survivals: Per draft token, P(accepted | all before it were).
        seconds: seconds[k]: cost of drafting and verifying k tokens; [0] is 0, never falling.
        rate: Tokens per second that the time would earn otherwise.

    Returns:
        Length (the shortest of the best) and its value: expected accepted tokens - rate * seconds.
    """
    best, value, expected = 0, 0.0, 0.0
    for index, alive in enumerate(joint(survivals), 1):
        expected += alive
        net = expected - rate * seconds[index]
        if net > value:
            best, value = index, net
    return best, value


class _Chain:
    """Draft tokens and their features, compared with the text as it comes."""

    __slots__ = ("lead", "matched", "rows", "tokens")

    def __init__(self, tokens: Sequence[int], rows: Sequence[tuple[Judge, Row]], lead: int = 0) -> None:
        self.tokens = tokens
        self.rows = rows
        self.lead = lead
        """Tokens before the first that `rows` judge."""
        self.matched = 0

    def follow(self, text: Sequence[int]) -> bool | None:
        """Go on comparing; True: all matched, False: one did not, None: the text ended before either."""
        for token in text:
            if token != self.tokens[self.matched]:
                return False
            self.matched += 1
            if self.matched == len(self.tokens):
                return True
        return None


class _Tracked:
    """A request and its chains whose outcome is not known yet."""

    __slots__ = ("adapter", "chains", "drafts", "temperature", "tenant")

    def __init__(self, tenant: str, *, adapter: bool, temperature: float) -> None:
        self.tenant = tenant
        self.adapter = adapter
        self.temperature = temperature
        self.drafts: list[Draft] = []
        self.chains: list[_Chain] = []

    @property
    def model(self) -> Judge:
        return Judge.ADAPTER if self.adapter else Judge.TURBO

    @property
    def ahead(self) -> Judge:
        return Judge.AHEAD_ADAPTER if self.adapter else Judge.AHEAD_TURBO


class DraftChoice:
    """Chooses per request and step, and learns from what was verified, chosen or not.

    In a step the engine calls, per request: `verified` with what the last step emitted; `plan` after the
    drafter's first pass (or without one); where the plan leaves it to the model, `pays`, and after each pass
    `add`, until `pays` says no; last `length`, how many of the model's drafts to verify.

    Candidates that were not chosen are compared with the text as it comes, so every fit sees full
    information: whoever drafts, the text has the target's distribution.

    Args:
        drafter: Finds candidates.
        calibration: Judges them and the model's drafts.
    """

    def __init__(self, drafter: NgramDrafter, calibration: Calibration) -> None:
        self.drafter = drafter
        self.calibration = calibration
        self._requests: dict[str, _Tracked] = {}

    def begin(
        self,
        request_id: str,
        tenant: str,
        prompt_ids: Sequence[int],
        *,
        adapter: bool,
        temperature: float,
        prediction_ids: Sequence[int] | None = None,
    ) -> None:
        """Admit a request; a second time (preempted, or moved between turbo and adapter) it sets the arm."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            tracked.adapter = adapter
            return
        self._requests[request_id] = _Tracked(tenant, adapter=adapter, temperature=temperature)
        self.drafter.begin(request_id, tenant, prompt_ids, prediction_ids)

    def end(self, request_id: str, *, remember: bool = True) -> None:
        """The request ended; `remember`: its answer enters its tenant's history."""
        tracked = self._requests.pop(request_id, None)
        if tracked is not None:
            for chain in tracked.chains:
                self._learn(tracked.tenant, chain, rejected=False)
        self.drafter.end(request_id, remember=remember)

    def forget(self, tenant: str) -> None:
        """Drop what was learned of a tenant; its requests in flight are served on, and leave nothing."""
        self.drafter.forget(tenant)
        self.calibration.forget(tenant)
        for tracked in self._requests.values():
            if tracked.tenant == tenant:
                tracked.tenant, tracked.chains, tracked.drafts = NOBODY, [], []

    def plan(
        self, request_id: str, draft: Draft | None, costs: Costs, *, most_drafted: int, most_copied: int
    ) -> Plan:
        """Choose between the model's drafts and the copies.

        Args:
            request_id: A request in flight.
            draft: What the first pass drafted; None: the drafter is not run in this step.
            costs: Of this request now.
            most_drafted: Cap of the model's drafts.
            most_copied: Cap of a copy.
        """
        tracked = self._requests[request_id]
        tracked.drafts = [] if draft is None else [draft]
        chain = [] if draft is None else self._expect(tracked, draft, most_drafted)
        seconds = [costs.verify[k] + max(k - 1, 0) * costs.draft_pass for k in range(len(chain) + 1)]
        length, value = best_length(chain, seconds, costs.rate)
        best = Plan(None, length, value, joint(chain))
        if most_copied < 1:
            return best
        for candidate in self.drafter.propose(
            request_id, None if draft is None else draft.token, most_copied
        ):
            rows = copied(candidate, draft, tracked.temperature)
            tracked.chains.append(_Chain(candidate.tokens, rows, int(candidate.after_first)))
            survivals = [self.calibration.survival(tracked.tenant, judge, row) for judge, row in rows]
            if candidate.after_first:
                survivals.insert(0, chain[0] if chain else 0.0)
            length, value = best_length(survivals, costs.verify, costs.rate)
            if value > best.value:
                best = Plan(candidate, length, value, joint(survivals))
        return best

    def pays(self, request_id: str, costs: Costs, *, most_drafted: int) -> bool:
        """Whether the model should draft one token more (the last one is known by `plan` or `add`)."""
        return self.gain(request_id, costs, most_drafted=most_drafted) > costs.rate * costs.draft_pass

    def gain(self, request_id: str, costs: Costs, *, most_drafted: int) -> float:
        """What one token more of the model is expected to add, net of verifying it; 0 at the cap."""
        tracked = self._requests[request_id]
        drafts = tracked.drafts
        if not drafts or len(drafts) >= most_drafted:
            return 0.0
        row = ahead(drafts[-1].log_odds, len(drafts) - 1, 1, tracked.temperature)
        following = self.calibration.survival(tracked.tenant, tracked.ahead, row)
        alive = joint(self._survivals(tracked))[-1] * following
        k = len(drafts)
        return alive - costs.rate * (costs.verify[k + 1] - costs.verify[k])

    def add(self, request_id: str, draft: Draft) -> None:
        """Note one more draft of the model."""
        self._requests[request_id].drafts.append(draft)

    def length(self, request_id: str, costs: Costs) -> int:
        """How many of the model's drafts to verify, now that all are known."""
        tracked = self._requests[request_id]
        return best_length(self._survivals(tracked), costs.verify, costs.rate)[0]

    def verified(self, request_id: str, emitted: Sequence[int]) -> None:
        """Learn from the tokens that a step emitted, and search behind them from now on."""
        tracked = self._requests.get(request_id)
        if tracked is None or not emitted:
            return
        if tracked.drafts:
            tracked.chains += _model_chains(tracked)
            tracked.drafts = []
        open_chains = []
        for chain in tracked.chains:
            outcome = chain.follow(emitted)
            if outcome is None:
                open_chains.append(chain)
            else:
                self._learn(tracked.tenant, chain, rejected=not outcome)
        tracked.chains = open_chains
        self.drafter.extend(request_id, emitted)

    def _learn(self, tenant: str, chain: _Chain, *, rejected: bool) -> None:
        if tenant != NOBODY and chain.matched >= chain.lead:
            self.calibration.observe(tenant, chain.rows, chain.matched - chain.lead, rejected=rejected)

    def _survivals(self, tracked: _Tracked) -> list[float]:
        return [
            self.calibration.survival(
                tracked.tenant, tracked.model, drafted(draft.log_odds, position, tracked.temperature)
            )
            for position, draft in enumerate(tracked.drafts)
        ]

    def _expect(self, tracked: _Tracked, draft: Draft, most: int) -> list[float]:
        """Survivals of the model's chain as far as its first draft tells them."""
        survival, temperature = self.calibration.survival, tracked.temperature
        chain = [survival(tracked.tenant, tracked.model, drafted(draft.log_odds, 0, temperature))]
        chain.extend(
            survival(tracked.tenant, tracked.ahead, ahead(draft.log_odds, 0, gap, temperature))
            for gap in range(1, most)
        )
        return chain[:most]


def _model_chains(tracked: _Tracked) -> list[_Chain]:
    """What the model's drafts of a step teach: its confidence at each, and at each earlier one."""
    tokens = [draft.token for draft in tracked.drafts]
    own = [
        (tracked.model, drafted(draft.log_odds, position, tracked.temperature))
        for position, draft in enumerate(tracked.drafts)
    ]
    chains = [_Chain(tokens, own)]
    for position, draft in enumerate(tracked.drafts[:-1]):
        rows = [
            (tracked.ahead, ahead(draft.log_odds, position, gap, tracked.temperature))
            for gap in range(1, len(tokens) - position)
        ]
        chains.append(_Chain(tokens, rows, position + 1))
    return chains
