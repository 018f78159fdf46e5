"""What engines and learners would say to a controller: an hour of one tenant's traffic and versions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adaptive.contracts import (
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_ENGINE_TELEMETRY,
    AdapterReference,
    Arm,
    ArmCounters,
    DrafterPublished,
    EngineTelemetry,
    HoldoutScore,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectors.transport import Transport

TURBO_TAU = 2.05


@dataclass
class Engine:
    """Counts as an engine does, in running totals, and reports over the log."""

    transport: Transport
    started_at: float
    name: str = "engine-a"
    totals: dict[tuple[str, Arm, int], ArmCounters] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311  a picture, no secret

    def serve(self, tenant: str, arm: Arm, version: int, requests: int, tau: float) -> None:
        """Add requests of 24 verify steps each whose acceptance length is about `tau`."""
        counters = self.totals.setdefault((tenant, arm, version), ArmCounters(tenant, arm, version))
        for _ in range(requests):
            steps, k = 24, 4 if arm is not Arm.OFF else 0
            accepted = min(round(steps * max(tau - 1 + self.chance.gauss(0, 0.12), 0)), steps * k)
            counters.requests += 1
            counters.verify_steps += steps
            counters.drafted += steps * k
            counters.accepted += accepted
            counters.emitted += steps + accepted
            counters.engine_seconds += steps * (0.033 + 0.0025 * k) * self.chance.uniform(0.95, 1.05)
            positions, left = [], accepted
            for position in range(k):
                part = min(steps, left if position == k - 1 else round(left * 0.52))
                positions.append(part)
                left -= part
            known = counters.accepted_per_position or [0] * k
            counters.accepted_per_position = [a + b for a, b in zip(known, positions, strict=True)]

    def report(self, at: float, acknowledged: Mapping[str, int] | None = None) -> None:
        """Send the totals."""
        report = EngineTelemetry(
            self.name, self.started_at, at, "b" * 64, "c" * 64, list(self.totals.values()), [],
            dict(acknowledged or {}), {}, [],
        )  # fmt: skip
        self.transport.send(TOPIC_ENGINE_TELEMETRY, self.name, encode(report))


def publish(transport: Transport, tenant: str, version: int, tau: float, at: float) -> None:
    """Announce a version that passed the learner's gate."""
    turbo = HoldoutScore(tau=TURBO_TAU, acceptance_per_position=[0.6, 0.3], verify_steps=900, requests=60)
    score = HoldoutScore(tau=tau, acceptance_per_position=[0.7, 0.5], verify_steps=900, requests=60)
    gain = tau / TURBO_TAU - 1
    adapter = AdapterReference(
        tenant, version, f"file:///store/{tenant}/{version}", f"{version:064x}", "b" * 64, "c" * 64, 32
    )
    transport.send(
        TOPIC_DRAFTER_PUBLISHED,
        tenant,
        encode(
            DrafterPublished(
                adapter, at, turbo, score, None, max(gain - 0.03, 0.004), gain + 0.03, 41_000 * version,
                38.0 + version, f"run-{version}", {0: 0}, {0: 99 * version},
            )
        ),
    )  # fmt: skip
