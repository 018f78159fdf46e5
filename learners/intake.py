"""From the log to the replay: consent first, then the ledger, then the commit, then assembly.

Taking a trace in costs tens of microseconds, assembling a request milliseconds, and more where features are
recomputed. So the log is read in large batches, whoever the traces are from, and each batch is one
transaction of the ledger; requests then wait in the ledger, not in the log, and are assembled tenant by
tenant in turn. A tenant that sends more than its turns take leaves out what exceeds `MOST_WAITING`, counted
as excess: an even sample of its traffic stays, and nobody else waits for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from collectors.store import StoreUnavailableError
from learners.fairness import FairQueue
from learners.features import LeftOutError, digest_of
from learners.ledger import Entry
from learners.status import IntakeStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from adaptive.contracts import TenantChanged, TraceRecord
    from adaptive.speculator.sequences import TracedSequence
    from collectors.consumer import ConsumerStatistics, Received
    from learners.features import Assembler
    from learners.ledger import Ledger
    from learners.replay import Replay

    Examine = Callable[[Sequence[TraceRecord], TracedSequence], None]
    """Raises LeftOutError for a request that must not be learned from."""

_log = structlog.get_logger(__name__)

STALE_SECONDS: Final = 3600.0
"""A request whose last segment has not come after this time never will."""
BATCH: Final = 2000
"""Most traces of one poll, and of one transaction of the ledger."""
READ_SECONDS: Final = 0.5
"""How long one round reads on while the log has more."""
ASSEMBLY_SECONDS: Final = 1.0
"""How long one round assembles while requests wait."""
SLICE_SECONDS: Final = 0.1
"""How long it assembles before it looks into the log again, where somebody's first request may lie."""
LAG_SECONDS: Final = 1.0
"""How often the log is asked how much there is still to read."""
MOST_WAITING: Final = 256
"""Complete requests of one tenant that may wait for assembly."""


class TraceSource(Protocol):
    """Traces of the partitions that this learner owns."""

    uncommitted: bool
    """Whether anything was polled since the last commit."""

    def poll(self, timeout: float, max_records: int = 500) -> list[Received[TraceRecord]]:
        """Return the next traces, waiting at most `timeout` seconds for one."""

    def put_back(self, messages: Sequence[Received[TraceRecord]]) -> None:
        """Poll traces again that could not be taken in."""

    def commit(self) -> None:
        """Go on behind everything polled after a restart."""

    def statistics(self) -> ConsumerStatistics:
        """How far behind the log this is."""

    def close(self) -> None:
        """Leave the group, so that others may take the partitions over."""


class TenantView(Protocol):
    """Every tenant's account."""

    @property
    def latest(self) -> Mapping[str, TenantChanged]:
        """By tenant."""

    def poll(self) -> object:
        """Bring `latest` up to date."""


class Intake:
    """Consumes traces; what it has entered into the ledger is never entered again."""

    def __init__(
        self,
        source: TraceSource,
        tenants: TenantView,
        ledger: Ledger,
        replay: Replay,
        assembler: Assembler,
        *,
        target_sha256: str,
        feature_source: str,
        examine: Examine | None = None,
        queue: FairQueue | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source: Final = source
        self._tenants: Final = tenants
        self._ledger: Final = ledger
        self._replay: Final = replay
        self._assembler: Final = assembler
        self._target_sha256: Final = target_sha256
        self._feature_source: Final = feature_source
        self._examine: Final = examine
        self._clock: Final = clock
        self._queue: Final = FairQueue() if queue is None else queue
        for tenant, number in ledger.waiting_requests():
            self._queue.add(tenant, number)
        self._status: Final = IntakeStatus(waiting=len(self._queue))
        self._lag_at = 0.0

    def poll(self, timeout: float) -> int:
        """Take in what the log has, waiting at most `timeout` seconds for something; returns the traces seen.

        Raises:
            TransportUnavailableError: the log is away; nothing was lost.
        """
        self._tenants.poll()
        seen = self._read(0.0 if len(self._queue) else timeout)
        deadline = time.monotonic() + ASSEMBLY_SECONDS
        while self._assemble_some() and time.monotonic() < deadline:
            seen += self._read(0.0)
        self._report()
        return seen

    def report(self) -> IntakeStatus:
        """How intake keeps up, as of the last `poll`."""
        return msgspec.structs.replace(self._status)

    def close(self) -> None:
        """Let others have the partitions at once."""
        self._source.close()

    def _assemble_some(self) -> bool:
        """Store requests whose segments are all here, for a moment; whether it makes sense to go on."""
        deadline = time.monotonic() + SLICE_SECONDS
        while (taken := self._queue.next()) is not None:
            try:
                self._assemble(taken.number)
            except StoreUnavailableError as error:
                self._queue.put_back(taken)
                _log.warning("tensor store away, requests wait", error=str(error))
                return False
            except Exception:
                self._queue.add(taken.tenant, taken.number)  # at the end: the others go first
                raise
            if time.monotonic() > deadline:
                return True
        self._assembler.release()
        return False

    def give_up_stale(self) -> None:
        """Leave out the requests whose last segment never came."""
        waiting = set(self._ledger.complete_requests())  # for assembly, not for segments
        for number in set(self._ledger.stale_requests(self._clock() - STALE_SECONDS)) - waiting:
            self._ledger.leave_out(number, "incomplete")

    def _read(self, timeout: float) -> int:
        """Take in what the log has; whatever is committed there is in the ledger."""
        deadline = time.monotonic() + READ_SECONDS
        seen = 0
        while True:
            received = self._source.poll(timeout, BATCH)
            if received:
                try:
                    self._enter(received)
                except Exception:
                    self._source.put_back(received)  # a commit of what comes next must not go past them
                    raise
            if self._source.uncommitted:  # dead letters alone are a reason to commit too
                self._source.commit()
            seen += len(received)
            if not received or time.monotonic() > deadline:
                return seen
            timeout = 0.0

    def _enter(self, received: Sequence[Received[TraceRecord]]) -> None:
        entries = [
            Entry(each.message, each.value, each.partition, each.offset, self._left_out(each.message))
            for each in received
        ]
        entered = self._ledger.enter_many(entries, self._queue.waiting(), MOST_WAITING)
        for tenant, number in entered.complete:
            self._queue.add(tenant, number)
        self._status.traces += len(received)
        self._status.duplicates += entered.duplicates
        self._status.excess += entered.excess

    def _left_out(self, record: TraceRecord) -> str:
        """Why nothing of a trace may be kept; empty if it may."""
        account = self._tenants.latest.get(record.tenant)
        if account is None or not account.learn:
            return "no_consent"
        return "other_target" if record.target_sha256 != self._target_sha256 else ""

    def _report(self) -> None:
        status = self._status
        status.waiting = len(self._queue)
        status.oldest_waiting_seconds = self._queue.oldest_seconds()
        status.recomputed = dict(self._assembler.recomputed)
        if self._clock() - self._lag_at >= LAG_SECONDS:
            self._lag_at = self._clock()
            statistics = self._source.statistics()
            status.lag, status.behind_seconds = statistics.lag, statistics.behind_seconds
            status.dead_lettered = statistics.dead_lettered

    def _assemble(self, number: int) -> None:
        records = self._ledger.parts(number)
        if not records:  # given up, or erased, while it waited
            return
        tenant = records[0].tenant
        try:
            sequence = self._assembler.assemble(records)
            if self._examine is not None:
                self._examine(records, sequence)
        except LeftOutError as error:
            _log.info("request left out", tenant=tenant, request_id=records[0].request_id, reason=str(error))
            self._ledger.leave_out(number, error.reason)
            return
        self._replay.save(tenant, number, sequence)
        rows = len(sequence.token_ids)
        kept = self._ledger.mark_ready(
            number,
            rows=rows,
            tokens=rows - sequence.answer_start,
            digest=digest_of(sequence),
            source=self._feature_source,
        )
        if not kept:
            self._replay.discard(tenant, number)
