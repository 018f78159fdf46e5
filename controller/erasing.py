"""The thread that brings erasures to their end, however often it is interrupted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import select

from adaptive.contracts import (
    DEAD_LETTER_SUFFIX,
    TOPIC_ERASURE_ACKNOWLEDGED,
    TOPIC_TENANT_ERASED,
    TOPICS,
    ErasureAcknowledged,
)
from collectors.consumer import MessageConsumer
from collectors.erasure import ErasableLog, watermarks
from controller import erasure
from controller.erasure import Step
from controller.lease import LeaseLostError
from controller.models import Erasure, Tenant
from controller.workers import GROUP, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adaptive.contracts import Watermark
    from collectors.store import TensorStore
    from collectors.transport import Transport
    from controller.database import Database
    from controller.lease import LeaderDatabase, LeaderLease
    from controller.metrics import Metrics
    from controller.workers import RelayWorker

POLL_SECONDS: Final = 0.5
EXPIRE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 5.0
"""Between attempts at something that is away."""
WATCHED: Final = sorted(
    {topic + end for topic in TOPICS for end in ("", DEAD_LETTER_SUFFIX)}
    - {TOPIC_TENANT_ERASED, TOPIC_ERASURE_ACKNOWLEDGED}
)
"""Topics that may hold data of a tenant."""

_log = structlog.get_logger(__name__)


class ErasureWorker(Worker):
    """Takes erasures from step to step; what is away delays one, and the erasure says so.

    Args:
        database: Where erasures are kept.
        transport: The log.
        store: Features and adapters.
        relay: Sends the outbox.
        metrics: Counts failed rounds.
        retention_seconds: How long Kafka keeps records.
        clock: Unix seconds.
        lease: Says whether this controller acts; None: it does.
    """

    name = "erasure"

    def __init__(
        self,
        database: Database | LeaderDatabase,
        transport: Transport,
        store: TensorStore,
        relay: RelayWorker,
        metrics: Metrics,
        retention_seconds: float,
        clock: Callable[[], float],
        lease: LeaderLease | None = None,
    ) -> None:
        super().__init__(metrics, lease)
        self._database = database
        self._transport = transport
        self._store = store
        self._relay = relay
        self._retention_seconds = retention_seconds
        self._clock = clock
        self._wake = threading.Event()
        self._answers: MessageConsumer[ErasureAcknowledged] | None = None
        self._retry_at: dict[str, float] = {}
        self._expire_at = 0.0

    def wake(self) -> None:
        """Say that an erasure was requested."""
        self._wake.set()

    def reset(self) -> None:
        """Leave the log; the next round resumes from what is committed there."""
        answers, self._answers = self._answers, None
        if answers is not None:
            answers.close()

    def round(self) -> None:
        """Take in what processes say, then bring every erasure as far as it gets."""
        self._wake.clear()
        with self._database.read() as session:
            running = session.scalars(select(Erasure.id).where(Erasure.step != Step.DONE)).all()
        for erasure_id in running:
            self._proceed(erasure_id)
        self._listen()
        self._expire()
        self._wake.wait(POLL_SECONDS)

    def _expire(self) -> None:
        """Hold tenants to their own retention, now and then; Kafka knows one per topic only."""
        if not isinstance(self._transport, ErasableLog) or self._clock() < self._expire_at:
            return
        self._expire_at = self._clock() + EXPIRE_SECONDS
        limited = Tenant.retention_seconds.is_not(None) | Tenant.retention_bytes.is_not(None)
        with self._database.read() as session:
            tenants = session.execute(
                select(Tenant.id, Tenant.retention_seconds, Tenant.retention_bytes).where(limited)
            ).all()
        for tenant, seconds, most in tenants:
            before = self._clock() - (self._retention_seconds if seconds is None else seconds)
            count = self._transport.expire(tenant, before, most)
            if count:
                _log.info("log records deleted by a tenant's own retention", tenant=tenant, records=count)

    def _listen(self) -> None:
        if self._answers is None:
            self._answers = MessageConsumer(
                self._transport, TOPIC_ERASURE_ACKNOWLEDGED, ErasureAcknowledged, GROUP
            )
        received = self._answers.poll(0.0)
        if not received:
            return
        with self._database.write() as session:
            for item in received:
                erasure.acknowledge(session, item.message)
        self._answers.commit()
        self._wake.set()

    def _proceed(self, erasure_id: str) -> None:
        """Do the steps that can be done now."""
        if self._clock() < self._retry_at.get(erasure_id, 0.0):
            return
        try:
            while self._step(erasure_id):
                pass
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001  whatever is away, this erasure waits and says so, others go on
            self._retry_at[erasure_id] = self._clock() + RETRY_SECONDS
            self._wait(erasure_id, f"{type(error).__name__}: {error}")
        else:
            self._retry_at.pop(erasure_id, None)

    def _step(self, erasure_id: str) -> bool:
        """Do one step; True if the next can follow at once."""
        with self._database.read() as session:
            row = session.get_one(Erasure, erasure_id)
            step, tenant = Step(row.step), row.tenant
            waiting = erasure.missing(session, row, self._clock()) if step is Step.ACKNOWLEDGE else {}
            derived = erasure.derived_adapters(row)
        if step is Step.ANNOUNCE:
            self._finish(erasure_id, Step.REMOVE, self._ends())
        elif step is Step.REMOVE:
            counts = self._remove(tenant, self._ends())
            for adapter in derived:
                place = "store derived adapters"
                counts[place] = counts.get(place, 0) + self._store.remove(adapter.uri)
            self._finish(erasure_id, Step.ACKNOWLEDGE, counts=counts)
        elif step is Step.ACKNOWLEDGE:
            if waiting:
                self._wait(erasure_id, "; ".join(f"{process}: {why}" for process, why in waiting.items()))
                return False
            self._finish(erasure_id, Step.SEAL)
        elif step is Step.SEAL:
            marks = self._ends()
            counts = self._remove(tenant, marks)
            self._finish(erasure_id, Step.DONE, marks, counts)
            self._database.scrub()
        return step is not Step.DONE and step is not Step.SEAL

    def _ends(self) -> list[Watermark]:
        return watermarks(self._transport, WATCHED)

    def _remove(self, tenant: str, marks: Sequence[Watermark]) -> dict[str, int]:
        """Delete from log, store and tables what is there now."""
        counts = {"store objects": self._store.delete_tenant(tenant)}
        if isinstance(self._transport, ErasableLog):
            counts |= {f"log {topic}": n for topic, n in self._transport.erase(tenant, marks).items()}
        with self._database.write() as session:
            counts |= erasure.remove_rows(session, tenant)
        self._database.scrub()
        return counts

    def _finish(
        self,
        erasure_id: str,
        following: Step,
        marks: list[Watermark] | None = None,
        counts: dict[str, int] | None = None,
    ) -> None:
        """Note that a step is done, with its message in the same transaction."""
        now = self._clock()
        with self._database.write() as session:
            row = session.get_one(Erasure, erasure_id, with_for_update=True)
            if counts is not None:
                erasure.note_removed(row, counts)
            if marks is not None:
                erasable = isinstance(self._transport, ErasableLog)
                row.kafka_gone_by = None if erasable else now + self._retention_seconds
                erasure.announce(session, row, marks, now)
            row.step, row.waiting, row.updated_at = following, "", now
            if following is Step.DONE:
                row.finished_at = now
            _log.info("erasure goes on", tenant=row.tenant, erasure=erasure_id, step=following.value)
        if marks is not None:
            self._relay.wake()

    def _wait(self, erasure_id: str, why: str) -> None:
        with self._database.write() as session:
            row = session.get_one(Erasure, erasure_id, with_for_update=True)
            if row.waiting == why:
                return
            row.waiting, row.updated_at = why, self._clock()
        _log.warning("erasure waits", erasure=erasure_id, step=row.step, why=why)
