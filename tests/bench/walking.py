"""Walks recorded requests as a server would, under a rule that says what to draft at each verify step."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from adaptive.engine.choice import Costs
from adaptive.engine.survival import Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from adaptive.engine.choice import DraftChoice
    from tests.bench.recordings import Recording

MOST_DRAFTED, MOST_COPIED = 4, 8
BASE, PASS, TOKEN = 0.031, 0.0019, 0.0008
"""Seconds of a step without drafts, of a drafter pass, of a token to verify: two CPU cores, batch 1."""
COSTS = Costs(verify=[TOKEN * k for k in range(MOST_COPIED + 1)], draft_pass=PASS, rate=60.0)


@dataclasses.dataclass
class Walk:
    """Totals over requests."""

    steps: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    copied_steps: int = 0
    seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens per verify step."""
        return self.emitted / max(self.steps, 1)

    @property
    def speed(self) -> float:
        """Tokens per second by the cost model."""
        return self.emitted / max(self.seconds, 1e-9)


class Rule(Protocol):
    """Decides what to draft."""

    def begin(self, number: int, request: Recording) -> None:
        """A request starts; its first token is known."""

    def draft(self, slot: int) -> tuple[Sequence[int], int, bool]:
        """Drafts after answer[: slot + 1], the drafter passes run for them, whether they were copied."""
        ...

    def verified(self, emitted: Sequence[int]) -> None:
        """What the step emitted."""

    def end(self) -> None:
        """The request ended."""


def matches(drafts: Sequence[int], truth: Sequence[int]) -> int:
    """Length of the common beginning."""
    count = 0
    for draft, true in zip(drafts, truth, strict=False):
        if draft != true:
            break
        count += 1
    return count


def walk(rule: Rule, requests: Iterable[Recording]) -> Walk:
    """Serve the requests one after the other."""
    total = Walk()
    for number, request in enumerate(requests):
        rule.begin(number, request)
        slot = 0
        while slot < request.slots:
            drafts, passes, copied = rule.draft(slot)
            truth = request.answer[slot + 1 : slot + 2 + len(drafts)]
            hits = matches(drafts, truth)
            emitted = truth[: hits + 1]
            total.steps += 1
            total.emitted += len(emitted)
            total.drafted += len(drafts)
            total.accepted += hits
            total.copied_steps += copied
            total.seconds += BASE + passes * PASS + len(drafts) * TOKEN
            rule.verified(emitted)
            slot += len(emitted)
        rule.end()
    return total


class Fixed:
    """Always the same arm, always as many drafts."""

    def __init__(self, arm: str, most: int = MOST_DRAFTED) -> None:
        self._arm, self._most = arm, most

    def begin(self, number: int, request: Recording) -> None:
        """Take the request's chains."""
        del number
        self._chains = request.drafts[self._arm]

    def draft(self, slot: int) -> tuple[Sequence[int], int, bool]:
        """The whole chain."""
        return self._chains[slot][: self._most], self._most, False

    def verified(self, emitted: Sequence[int]) -> None:
        """Nothing to learn."""

    def end(self) -> None:
        """Nothing to keep."""


class Chosen:
    """What DraftChoice chooses; `look` sees every step before it is decided."""

    def __init__(
        self,
        choice: DraftChoice,
        arm: str,
        temperature: float,
        costs: Costs = COSTS,
        most_copied: int = MOST_COPIED,
        tenant: str = "tenant",
        stop: bool = True,
        look: Callable[[Recording, int], None] | None = None,
    ) -> None:
        self._choice, self._arm, self._temperature, self._costs = choice, arm, temperature, costs
        self._most_copied, self._tenant, self._stop, self._look = most_copied, tenant, stop, look

    def begin(self, number: int, request: Recording) -> None:
        """Admit it."""
        self._id, self._request = f"{number}", request
        self._choice.begin(
            self._id,
            self._tenant,
            request.prompt,
            adapter=self._arm == "adapter",
            temperature=self._temperature,
        )
        self._choice.verified(self._id, request.answer[:1])

    def draft(self, slot: int) -> tuple[Sequence[int], int, bool]:
        """As the engine would ask for it."""
        if self._look is not None:
            self._look(self._request, slot)
        tokens = self._request.drafts[self._arm][slot]
        odds = self._request.log_odds[self._arm][slot]
        plan = self._choice.plan(
            self._id,
            Draft(tokens[0], odds[0]),
            self._costs,
            most_drafted=MOST_DRAFTED,
            most_copied=self._most_copied,
        )
        if plan.candidate is not None:
            return plan.candidate.tokens[: plan.length], 1, True
        count = 1
        while count < MOST_DRAFTED and (
            not self._stop or self._choice.pays(self._id, self._costs, most_drafted=MOST_DRAFTED)
        ):
            self._choice.add(self._id, Draft(tokens[count], odds[count]))
            count += 1
        length = self._choice.length(self._id, self._costs) if self._stop else count
        return tokens[:length], count, False

    def verified(self, emitted: Sequence[int]) -> None:
        """Learn."""
        self._choice.verified(self._id, emitted)

    def end(self) -> None:
        """Remember."""
        self._choice.end(self._id)
