"""Background threads of the controller: one reads the log and decides, one sends what was decided.

A worker never ends on an error: the log or the database may be away for a while. It logs, waits a little
longer after every failure in a row, and begins again from what is committed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import select

from adaptive.contracts import (
    TOPIC_ARM_SCORED,
    TOPIC_DRAFTER_PUBLISHED,
    TOPIC_ENGINE_TELEMETRY,
    Arm,
    ArmScored,
    DrafterPublished,
    EngineTelemetry,
)
from collectors.consumer import MessageConsumer
from collectors.erasure import ErasedTenants
from controller import drift, operation, outbox, rollout, stages, telemetry
from controller.lease import LeaseLostError
from controller.models import ArmTotal, Key, Tenant
from controller.speeds import record_speed
from controller.tenants import expire_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectors.consumer import Received
    from collectors.transport import Transport
    from controller.database import Database
    from controller.lease import LeaderDatabase, LeaderLease
    from controller.metrics import Metrics
    from controller.models import Decision

GROUP: Final = "controller"
POLL_SECONDS: Final = 0.2
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
PRUNE_SECONDS: Final = 60.0
STAND_BY_SECONDS: Final = 1.0
"""Between two looks at whether this controller is to act."""
LOOKAHEAD: Final = 4
"""Draft tokens per step that the cost of one is averaged over."""
REVIEW_GROWTH: Final = 1.02
"""A champion is judged again when its control traffic has grown by this factor."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Reviewed:
    """Control traffic of a champion in verify steps: the tenant's total when first seen, and its growth."""

    first: int
    grown: int = 0


class Worker:
    """Runs rounds of work on a thread until stopped."""

    name: str

    def __init__(self, metrics: Metrics, lease: LeaderLease | None = None) -> None:
        self._metrics = metrics
        self._lease = lease
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"controller-{self.name}", daemon=True)
        self.failing: str | None = "not started"
        """Why the last round failed; None after a good one."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End after the round in progress."""
        self._stopping.set()
        self._thread.join(timeout)

    def round(self) -> None:
        """Do what there is to do, waiting a moment where there is nothing."""
        raise NotImplementedError

    def reset(self) -> None:
        """Let go of what a failed round may have left behind."""

    def _stand_by(self) -> None:
        """Leave the work to the controller that leads: hold nothing of the log, and look again soon."""
        self.failing = None
        self.reset()
        self._stopping.wait(STAND_BY_SECONDS)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            try:
                if self._lease is not None and not self._lease.hold():
                    self._stand_by()
                    continue
                self.round()
            except LeaseLostError as error:
                _log.warning("worker stands by", worker=self.name, why=str(error))
            except Exception as error:  # noqa: BLE001  whatever fails, the next round starts from committed state
                self.failing = f"{type(error).__name__}: {error}"
                self._metrics.failures.labels(self.name).inc()
                _log.warning("worker failed, will retry", worker=self.name, error=self.failing, pause=pause)
                self.reset()
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                self.failing = None
                pause = FIRST_PAUSE_SECONDS
        self.reset()


class RelayWorker(Worker):
    """Sends the outbox to the log, at once when woken."""

    name = "relay"

    def __init__(
        self,
        database: Database | LeaderDatabase,
        transport: Transport,
        metrics: Metrics,
        lease: LeaderLease | None = None,
    ) -> None:
        super().__init__(metrics, lease)
        self._database = database
        self._transport = transport
        self._wake = threading.Event()

    def wake(self) -> None:
        """Say that something was committed to the outbox."""
        self._wake.set()

    def stop(self, timeout: float) -> None:
        """Send what is pending and end."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout)

    def round(self) -> None:
        """Send everything pending, then wait to be woken."""
        self._wake.clear()
        outbox.relay(self._database, self._transport)
        self._wake.wait(POLL_SECONDS)


class PolicyWorker(Worker):
    """Takes over published versions and telemetry, and reviews the champions."""

    name = "policy"

    def __init__(
        self,
        database: Database | LeaderDatabase,
        transport: Transport,
        relay: RelayWorker,
        metrics: Metrics,
        clock: Callable[[], float],
        lease: LeaderLease | None = None,
        canary_share: float = 0.0,
    ) -> None:
        super().__init__(metrics, lease)
        self._database = database
        self._transport = transport
        self._relay = relay
        self._canary_share = canary_share
        self._costs = stages.DEFAULT_COSTS
        self._clock = clock
        self._published: MessageConsumer[DrafterPublished] | None = None
        self._telemetry: MessageConsumer[EngineTelemetry] | None = None
        self._scored: MessageConsumer[ArmScored] | None = None
        self._erased: ErasedTenants | None = None
        self._reviewed: dict[tuple[str, int | None, float], _Reviewed] = {}
        self._pruned_at = 0.0

    def reset(self) -> None:
        """Leave the log; the next round resumes from what is committed there."""
        consumers = (self._published, self._telemetry, self._scored, self._erased)
        self._published = self._telemetry = self._scored = self._erased = None
        for consumer in consumers:
            if consumer is not None:
                consumer.close()

    def round(self) -> None:
        """Read the log once and act on it."""
        if self._published is None or self._telemetry is None or self._scored is None:
            self._erased = ErasedTenants(self._transport)
            self._published = MessageConsumer(
                self._transport, TOPIC_DRAFTER_PUBLISHED, DrafterPublished, GROUP, erased=self._erased
            )
            self._telemetry = MessageConsumer(self._transport, TOPIC_ENGINE_TELEMETRY, EngineTelemetry, GROUP)
            self._scored = MessageConsumer(
                self._transport, TOPIC_ARM_SCORED, ArmScored, GROUP, erased=self._erased
            )
        published = self._published.poll(0.0)
        if published:
            self._take_over(published)
            self._published.commit()
        scored = self._scored.poll(0.0)
        if scored:
            drift.prepare()
            with self._database.write() as session:
                for item in scored:
                    stages.receive_scored(session, item.message, self._costs, self._clock())
            self._scored.commit()
            self._count(TOPIC_ARM_SCORED, len(scored), [])
        reports = self._telemetry.poll(POLL_SECONDS)
        if reports:
            self._record(reports)
            self._telemetry.commit()
            self._review()
        self._expire_keys()
        self._advance()
        now = self._clock()
        if abs(now - self._pruned_at) >= PRUNE_SECONDS:  # also after a clock was put back
            with self._database.write() as session:
                telemetry.prune(session, now)
                operation.prune(session, now)
            self._pruned_at = now

    def _expire_keys(self) -> None:
        with self._database.read() as session:
            due = session.scalar(
                select(Key.id).where(Key.expires_at <= self._clock(), Key.revoked_at.is_(None)).limit(1)
            )
        if due is not None:
            with self._database.write() as session:
                expire_keys(session, self._clock())
            self._relay.wake()

    def _take_over(self, received: Sequence[Received[DrafterPublished]]) -> None:
        with self._database.write() as session:
            decisions = [
                rollout.receive_published(session, item.message, self._clock(), self._canary_share)
                for item in received
            ]
        self._count(TOPIC_DRAFTER_PUBLISHED, len(received), decisions)

    def _record(self, received: Sequence[Received[EngineTelemetry]]) -> None:
        decisions: list[Decision | None] = []
        with self._database.write() as session:
            for item in received:
                refusals = telemetry.record_telemetry(session, item.message, self._clock())
                decisions += [rollout.apply_refusal(session, refusal, self._clock()) for refusal in refusals]
                decisions += record_speed(session, item.message, self._clock())
                self._costs = stages.costs_of(item.message, LOOKAHEAD) or self._costs
        self._count(TOPIC_ENGINE_TELEMETRY, len(received), decisions)

    def _advance(self) -> None:
        """Take every rollout under way as far as its evidence goes."""
        with self._database.read() as session:
            tenants = stages.tenants_in_rollout(session)
        for tenant_id in tenants:
            with self._database.write() as session:
                tenant = session.get(Tenant, tenant_id, with_for_update=True)
                decision = None if tenant is None else stages.advance(session, tenant, self._clock())
            self._count(TOPIC_ARM_SCORED, 0, [decision])

    def _review(self) -> None:
        """Judge the champions whose control traffic has grown enough since they were judged last."""
        decisions: list[Decision | None] = []
        with self._database.read() as session:
            serving = session.execute(
                select(Tenant.id, Tenant.champion, Tenant.champion_since, ArmTotal.verify_steps)
                .join(ArmTotal, (ArmTotal.tenant == Tenant.id) & (ArmTotal.arm == Arm.TURBO.value))
                .where(Tenant.champion.is_not(None), Tenant.pin.is_(None))
            ).all()
        reviewed: dict[tuple[str, int | None, float], _Reviewed] = {}
        for tenant_id, champion, since, control_steps in serving:
            key = (tenant_id, champion, since)
            last = reviewed[key] = self._reviewed.get(key) or _Reviewed(control_steps)
            if control_steps - last.first < last.grown * REVIEW_GROWTH:
                continue
            last.grown = control_steps - last.first
            with self._database.write() as session:
                tenant = session.get_one(Tenant, tenant_id, with_for_update=True)
                decisions.append(rollout.review(session, tenant, self._clock()))
        self._reviewed = reviewed
        self._count(TOPIC_ENGINE_TELEMETRY, 0, decisions)

    def _count(self, topic: str, records: int, decisions: Sequence[Decision | None]) -> None:
        self._metrics.records.labels(topic).inc(records)
        if any(decision is not None for decision in decisions):
            self._relay.wake()
