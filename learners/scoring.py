"""What every arm does on each verified request, sent to whoever weighs arms (`adaptive.arm.scored.v1`).

Full information: a walk needs the target's text and features only, so an arm is scored on requests that
another one drafted for. Nothing is scored on a request that it was trained on: hold-out requests are walked
by turbo, champion and challenger, requests that are new to training by turbo and champion, before any update.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from adaptive.contracts import TOPIC_ARM_SCORED, Arm, ArmScore, ArmScored, encode
from collectors.transport import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from adaptive.speculator.sequences import TracedSequence
    from learners.evaluation import Scored
    from learners.records import UpdatePlan

_log = structlog.get_logger(__name__)


class ScoreLog(Protocol):
    """Where scores are announced."""

    def send(self, topic: str, key: str, value: bytes | None) -> None:
        """Append one record."""


class Walked(NamedTuple):
    """One request that arms were scored on."""

    request_id: str
    context_length: int
    """Tokens before the first one that was drafted."""


def walked(request_id: str, sequence: TracedSequence) -> Walked:
    """Name a request and where its drafts begin."""
    return Walked(request_id, sequence.first_query + 2)


class ArmScores:
    """Sends scores; whoever is told twice knows by the trace id; a log that is away costs them only."""

    def __init__(self, log: ScoreLog, clock: Callable[[], float] = time.time) -> None:
        self._log: Final = log
        self._clock: Final = clock

    def send(
        self,
        plan: UpdatePlan,
        requests: Sequence[Walked],
        scored: Mapping[tuple[Arm, int], Scored],
        *,
        lookahead: int,
        generation: int,
    ) -> None:
        """Announce the scores of several arms, each on the same requests.

        Args:
            plan: Of the update that looked at them.
            requests: In the order of the scores.
            scored: By arm and adapter version.
            lookahead: Drafts per verify step of the walks.
            generation: The tenant's, as in its traces.
        """
        try:
            for index, request in enumerate(requests):
                message = ArmScored(
                    tenant=plan.tenant,
                    trace_id=f"{request.request_id}:0",
                    scored_at=self._clock(),
                    target_sha256=plan.target_sha256,
                    turbo_sha256=plan.turbo_sha256,
                    context_length=request.context_length,
                    lookahead=lookahead,
                    scores=[
                        _score(arm, version, scores, index, lookahead)
                        for (arm, version), scores in scored.items()
                    ],
                    generation=generation,
                )
                self._log.send(TOPIC_ARM_SCORED, plan.tenant, encode(message))
        except TransportError as error:
            _log.warning("scores of arms not sent", tenant=plan.tenant, error=str(error))


def _score(arm: Arm, version: int, scored: Scored, index: int, lookahead: int) -> ArmScore:
    one = scored.requests[index]
    return ArmScore(
        arm=arm,
        version=version,
        verify_steps=one.verify_steps,
        drafted=one.verify_steps * lookahead,
        accepted=one.emitted - one.verify_steps,
    )
