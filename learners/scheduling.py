"""Which tenants are due for an update, in which order, and why others are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from learners.payoff import (
    SECONDS_AT_FIRST,
    Outcome,
    Payoff,
    TrafficState,
    expected_gain,
    payoff,
    priority,
    spent,
)
from learners.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from adaptive.settings import Settings
    from learners.ledger import Ledger
    from learners.records import TenantCounters, Update

DAY_SECONDS: Final = 86_400.0
DRIFT_SHARE: Final = 0.25
"""Of the tokens that trigger an update, after a drift."""
RECENT_OUTCOMES: Final = 3
"""Updates whose cost is taken for the next one's."""


class Decision(NamedTuple):
    """Whether a tenant is due."""

    due: bool
    why: str
    """Empty where it is due, or where too little is new to ask."""
    payoff: Payoff
    expected_gain: float
    spent_today: float
    """Seconds of training and evaluation in the last 24 hours."""
    spent: float
    """The same since the ledger began."""
    drifts: int


class Scheduler:
    """Weighs tenants against each other; everything it knows is in the ledger, and read again at a start.

    Args:
        settings: Of this installation.
        ledger: Of the learner.
        step_seconds: Engine time of a tenant's verify step.
        clock: Unix seconds.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        step_seconds: Callable[[str], float],
        clock: Callable[[], float],
    ) -> None:
        self._settings: Final = settings
        self._ledger: Final = ledger
        self._step_seconds: Final = step_seconds
        self._clock: Final = clock
        self._traffic: Final[dict[str, Traffic]] = {}
        self._outcomes: Final[dict[str, list[Outcome]]] = {}
        self._due_since: Final[dict[str, int]] = {}
        self._ended = 0
        self._seen = 0

    def refresh(self) -> None:
        """Take in what traces have said since the last call."""
        for row in self._ledger.observations(self._seen):
            self._seen = row.number
            self._traffic.setdefault(row.tenant, Traffic()).add(row)

    def ended(self, update: Update) -> None:
        """An update of some tenant has come to its end."""
        self._ended += 1
        self._outcomes.pop(update.plan.tenant, None)
        self._due_since.pop(update.plan.tenant, None)

    def forget(self, tenant: str) -> None:
        """Know nothing of a tenant any more."""
        for known in (self._traffic, self._outcomes, self._due_since):
            known.pop(tenant, None)

    def decide(self, counters: TenantCounters) -> Decision:
        """Whether a tenant that may be learned for is due."""
        tenant, settings = counters.tenant, self._settings
        traffic = self._traffic.get(tenant, Traffic())
        outcomes = self._history(tenant)
        drifted = traffic.drifted_at > (outcomes[-1].at if outcomes else 0.0)
        share = counters.tokens_since_update / settings.update_tokens
        gain = expected_gain([one for one in outcomes if one.at >= traffic.drifted_at], share)
        recent = outcomes[-RECENT_OUTCOMES:]
        weighed = payoff(
            TrafficState(
                tokens_per_second=traffic.tokens_per_second,
                tau=traffic.tau,
                expected_gain=gain,
                step_seconds=self._step_seconds(tenant),
                training_seconds=sum(one.seconds for one in recent) / len(recent)
                if recent
                else SECONDS_AT_FIRST,
                horizon_seconds=settings.payback_hours * 3600,
                drifted=drifted,
            )
        )
        today = spent(outcomes, self._clock() - DAY_SECONDS)
        quota = settings.training_seconds_per_day
        why = ""
        enough = share >= (DRIFT_SHARE if drifted else 1.0)
        if not enough:
            pass
        elif quota is not None and today >= quota:
            why = f"its quota is used up: {today:.0f} of {quota:.0f} training seconds in 24 hours"
        elif not weighed.pays:
            why = (
                f"it does not pay: {weighed.saving_seconds:.1f} s of engine time saved in "
                f"{settings.payback_hours:g} hours, {weighed.cost_seconds:.1f} s of training"
            )
        return Decision(
            due=enough and not why,
            why=why,
            payoff=weighed,
            expected_gain=gain,
            spent_today=today,
            spent=spent(outcomes, 0.0),
            drifts=traffic.drifts,
        )

    def due(self, tenants: Iterable[TenantCounters]) -> list[str]:
        """The tenants that are due, most pressing first."""
        pressing = []
        for counters in tenants:
            decision = self.decide(counters)
            if not decision.due:
                self._due_since.pop(counters.tenant, None)
                continue
            waited = self._ended - self._due_since.setdefault(counters.tenant, self._ended)
            rank = priority(decision.payoff.urgency, waited)
            pressing.append((-rank, counters.last_update, counters.tenant))
        return [tenant for _, _, tenant in sorted(pressing)]

    def _history(self, tenant: str) -> list[Outcome]:
        if tenant not in self._outcomes:
            self._outcomes[tenant] = [
                Outcome(
                    at=report.evaluated_at,
                    published=report.publish,
                    gain=report.gain_estimate,
                    seconds=report.training_seconds + report.evaluation_seconds,
                )
                for update in self._ledger.updates(tenant)
                if (report := update.report) is not None
            ]
        return self._outcomes[tenant]
