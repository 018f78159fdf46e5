"""From the log to the replay: consent first, then the ledger, then the commit, then assembly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from collectors.store import StoreUnavailableError
from learners.features import LeftOutError, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from adaptive.contracts import TenantChanged, TraceRecord
    from collectors.consumer import Received
    from learners.features import Assembler
    from learners.ledger import Ledger
    from learners.replay import Replay

_log = structlog.get_logger(__name__)

STALE_SECONDS: Final = 3600.0
"""A request whose last segment has not come after this time never will."""


class TraceSource(Protocol):
    """Traces of the partitions that this learner owns."""

    def poll(self, timeout: float, max_records: int = 500) -> list[Received[TraceRecord]]:
        """Return the next traces, waiting at most `timeout` seconds for one."""

    def commit(self) -> None:
        """Go on behind everything polled after a restart."""

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source: Final = source
        self._tenants: Final = tenants
        self._ledger: Final = ledger
        self._replay: Final = replay
        self._assembler: Final = assembler
        self._target_sha256: Final = target_sha256
        self._feature_source: Final = feature_source
        self._clock: Final = clock
        self.duplicates = 0
        """Traces that the log delivered again."""

    def poll(self, timeout: float) -> int:
        """Take in what the log has, waiting at most `timeout` seconds for something; returns the traces seen.

        Raises:
            TransportUnavailableError: the log is away; nothing was lost.
        """
        self._tenants.poll()
        received = self._source.poll(timeout)
        for item in received:
            self._enter(item)
        if received:
            self._source.commit()
        self.assemble()
        return len(received)

    def close(self) -> None:
        """Let others have the partitions at once."""
        self._source.close()

    def assemble(self) -> None:
        """Store every request whose segments are all here; while the store is away, do so later."""
        for number in self._ledger.complete_requests():
            try:
                self._assemble(number)
            except StoreUnavailableError as error:
                _log.warning("tensor store away, requests wait", error=str(error))
                return

    def give_up_stale(self) -> None:
        """Leave out the requests whose last segment never came."""
        waiting = set(self._ledger.complete_requests())  # for the store, not for segments
        for number in set(self._ledger.stale_requests(self._clock() - STALE_SECONDS)) - waiting:
            self._ledger.leave_out(number, "incomplete")

    def _enter(self, item: Received[TraceRecord]) -> None:
        record = item.message
        account = self._tenants.latest.get(record.tenant)
        if account is None or not account.learn:
            reason = "no_consent"
        elif record.target_sha256 != self._target_sha256:
            reason = "other_target"
        else:
            self.duplicates += not self._ledger.enter(record, item.partition, item.offset)
            return
        self._ledger.pass_over(record, item.partition, item.offset, reason)

    def _assemble(self, number: int) -> None:
        records = self._ledger.parts(number)
        tenant = records[0].tenant
        try:
            sequence = self._assembler.assemble(records)
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
