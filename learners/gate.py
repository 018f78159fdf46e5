"""The gate: whether a challenger is better than what serves, by paired requests of the newest hold-out.

All drafters walk the same answers. The relative gain in goodput (accepted tokens per second, at equal cost of
a verify step) is the ratio of their acceptance lengths over the hold-out. Its interval is Student's t around
the log ratio with the jackknife's standard error, requests being the sampling unit (Efron and Tibshirani, An
Introduction to the Bootstrap, chapter 11): pairing removes what makes one request easier than another, and
leaving out whole requests keeps a few long ones from looking like certainty. Long requests weigh more, so the
degrees of freedom are those of the effective number of requests (Kish, Survey Sampling, 1965: squared sum
over sum of squares): with the plain number, 3.3 % of simulated equals passed among requests of very unequal
length, with this one 2.5 % at most.

Evidence is spent once. A hold-out may overlap with one that judged an earlier challenger, and whoever looks
often enough at the same requests will see a gain by luck. Each request therefore carries its share of the
2.5 % and gives it to the first challenger it judges: by the union bound, of all challengers that one
hold-out's worth of requests ever judges, 2.5 % pass by luck, however often it is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scipy.stats import t as student_t

if TYPE_CHECKING:
    from collections.abc import Sequence

MINIMUM_REQUESTS: Final = 12
"""Fewer hold-out requests than this cannot tell a gain from luck; as many more are needed to train on."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class RequestScore:
    """How one drafter did on one request."""

    verify_steps: int
    emitted: int
    """Tokens those verify steps emitted: accepted drafts plus one per step."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Relative gain of a challenger over a baseline: 0.1 means 10 % more tokens per verify step."""

    estimate: float
    lower: float
    """Lower end of the two-sided 95 % interval; -1 where there are too few requests to say."""
    upper: float
    """Infinity where there are too few requests."""
    requests: int
    bound: float
    """Lower end at the level that this look may still spend; `lower` where the whole hold-out is fresh."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate decided, with the numbers it decided on."""

    publish: bool
    reason: str
    over_serving: Gain
    over_turbo: Gain


def paired_gain(
    baseline: Sequence[RequestScore], challenger: Sequence[RequestScore], *, fresh: float = 1.0
) -> Gain:
    """Interval of the challenger's relative gain in acceptance length.

    Args:
        baseline: Score per hold-out request.
        challenger: Scores of the same requests in the same order.
        fresh: Share of them that no earlier challenger was judged by, in [0, 1].

    Raises:
        ValueError: the two do not pair up.
    """
    if len(baseline) != len(challenger):
        raise ValueError(
            f"{len(baseline)} baseline requests against {len(challenger)} challenger requests: "
            "walk both drafters over the same hold-out"
        )
    pairs = [
        (old, new)
        for old, new in zip(baseline, challenger, strict=True)
        if old.verify_steps and new.verify_steps
    ]
    count = len(pairs)
    if not pairs:
        return Gain(0.0, -1.0, math.inf, 0, -1.0)
    old_steps, old_emitted = sum(old.verify_steps for old, _ in pairs), sum(old.emitted for old, _ in pairs)
    new_steps, new_emitted = sum(new.verify_steps for _, new in pairs), sum(new.emitted for _, new in pairs)
    log_ratio = math.log(new_emitted / new_steps) - math.log(old_emitted / old_steps)
    weights = [old.verify_steps + new.verify_steps for old, new in pairs]
    effective = sum(weights) ** 2 / sum(weight**2 for weight in weights)
    if count < MINIMUM_REQUESTS or effective < 2:
        return Gain(math.expm1(log_ratio), -1.0, math.inf, count, -1.0)
    without = [
        math.log((new_emitted - new.emitted) / (new_steps - new.verify_steps))
        - math.log((old_emitted - old.emitted) / (old_steps - old.verify_steps))
        for old, new in pairs
    ]
    centre = sum(without) / count
    error = math.sqrt((count - 1) / count * sum((value - centre) ** 2 for value in without))
    tail = (1 - CONFIDENCE) / 2
    margin = float(student_t.isf(tail, effective - 1)) * error
    bound = -1.0
    if fresh > 0:
        bound = math.expm1(log_ratio - float(student_t.isf(tail * min(1.0, fresh), effective - 1)) * error)
    return Gain(
        math.expm1(log_ratio), math.expm1(log_ratio - margin), math.expm1(log_ratio + margin), count, bound
    )


def decide(
    *,
    turbo: Sequence[RequestScore],
    champion: Sequence[RequestScore] | None,
    challenger: Sequence[RequestScore],
    fresh: float = 1.0,
) -> Verdict:
    """Decide whether a challenger may be published.

    It must beat what serves (the champion, or turbo where there is none), and turbo too: a champion that lost
    its tenant must not let a challenger pass that is worse than the floor.

    Args:
        turbo: Turbo's score per hold-out request.
        champion: The champion's, at the weight it serves with; None where turbo serves.
        challenger: The challenger's.
        fresh: Share of the hold-out that no earlier challenger was judged by.
    """
    over_turbo = paired_gain(turbo, challenger, fresh=fresh)
    over_serving = over_turbo if champion is None else paired_gain(champion, challenger, fresh=fresh)
    serving = "turbo" if champion is None else "the champion"
    if over_serving.requests < MINIMUM_REQUESTS:
        reason = f"too few hold-out requests: {over_serving.requests}, at least {MINIMUM_REQUESTS} are needed"
        return Verdict(publish=False, reason=reason, over_serving=over_serving, over_turbo=over_turbo)
    for name, gain in ((serving, over_serving), ("turbo", over_turbo)):
        if not gain.bound > 0:
            reason = (
                f"no certain gain over {name}: {gain.estimate:+.1%}, 95 % interval "
                f"[{gain.lower:+.1%}, {gain.upper:+.1%}] over {gain.requests} requests"
            )
            if fresh < 1:
                reason += f", of which {1 - fresh:.0%} judged earlier challengers: at least {gain.bound:+.1%}"
            return Verdict(publish=False, reason=reason, over_serving=over_serving, over_turbo=over_turbo)
    reason = (
        f"gain over {serving} {over_serving.estimate:+.1%}, 95 % interval "
        f"[{over_serving.lower:+.1%}, {over_serving.upper:+.1%}] over {over_serving.requests} requests"
    )
    return Verdict(publish=True, reason=reason, over_serving=over_serving, over_turbo=over_turbo)
