"""Measures all arms on the same never-trained prompts, interleaved, at concurrency 1."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from adaptive.contracts import Arm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adaptive.demo.client import Completion, EndpointClient
    from adaptive.workloads import Prompt

ARMS = (Arm.OFF, Arm.TURBO, Arm.ADAPTER)


@dataclasses.dataclass(slots=True)
class ArmResult:
    """Sums over the probe prompts of one arm."""

    output_tokens: int = 0
    seconds: float = 0.0
    verify_steps: int = 0
    accepted: int = 0
    histogram: list[int] = dataclasses.field(default_factory=list)
    versions: set[int] = dataclasses.field(default_factory=set)

    def add(self, answer: Completion) -> None:
        """Count one answer."""
        self.output_tokens += answer.output_tokens
        self.seconds += answer.seconds
        self.verify_steps += answer.verify_steps
        self.accepted += answer.accepted
        self.versions.add(answer.version)
        if len(self.histogram) < len(answer.histogram):
            self.histogram += [0] * (len(answer.histogram) - len(self.histogram))
        for accepted, steps in enumerate(answer.histogram):
            self.histogram[accepted] += steps

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens over request seconds."""
        return self.output_tokens / self.seconds if self.seconds else None

    @property
    def tau(self) -> float | None:
        """Acceptance length as vLLM counts it: 1 + accepted / verify steps."""
        return 1 + self.accepted / self.verify_steps if self.verify_steps else None

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of verify steps whose first i+1 drafts were all accepted."""
        if not self.verify_steps:
            return []
        return [sum(self.histogram[i + 1 :]) / self.verify_steps for i in range(len(self.histogram) - 1)]

    def summary(self) -> dict[str, Any]:
        """The report's form."""
        return {
            "tau": self.tau,
            "acceptance_per_position": self.acceptance_per_position,
            "tokens_per_second": self.tokens_per_second,
        }


def probe(
    client: EndpointClient,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    deadline: float,
    minimum: int,
    progress: Callable[[int, int], None],
) -> dict[Arm, ArmResult]:
    """Answer prompts greedily with every arm in turn, the order rotating from prompt to prompt.

    Args:
        client: the tenant's client.
        prompts: probe prompts.
        max_tokens: most output tokens per answer.
        deadline: monotonic time after which no further prompt is begun.
        minimum: prompts to measure whatever the deadline says.
        progress: called with (prompts done, prompts).
    """
    results = {arm: ArmResult() for arm in ARMS}
    for number, prompt in enumerate(prompts):
        if number >= minimum and time.monotonic() > deadline:
            break
        for turn in range(len(ARMS)):
            arm = ARMS[(number + turn) % len(ARMS)]
            answer = client.complete(
                prompt.messages, max_tokens=min(max_tokens, prompt.max_tokens), temperature=0.0, arm=arm
            )
            results[arm].add(answer)
        progress(number + 1, len(prompts))
    return results
