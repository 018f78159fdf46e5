"""The learner's memory on disk: which traces it has consumed, what became of them, and how far updates are.

SQLite in WAL mode, one writer. The log delivers at least once; the ledger makes that effectively once: a
trace is entered before its offset is committed in the log, and a trace_id that is already here is ignored.
"""

from __future__ import annotations

import sqlite3
import sys
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from adaptive.contracts import Arm, TraceRecord, decode, encode
from learners.records import (
    FINISHED_STATES,
    Observation,
    RequestState,
    StoredRequest,
    TenantCounters,
    Update,
    UpdatePlan,
    UpdateReport,
    UpdateState,
)
from learners.traffic import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS identity (ledger_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trace (
    trace_id TEXT PRIMARY KEY, tenant TEXT NOT NULL,
    log_partition INTEGER NOT NULL, log_offset INTEGER NOT NULL, entered_at REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS part (
    tenant TEXT NOT NULL, request_id TEXT NOT NULL, segment INTEGER NOT NULL, finished INTEGER NOT NULL,
    record BLOB NOT NULL, PRIMARY KEY (tenant, request_id, segment)
);
CREATE TABLE IF NOT EXISTS request (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, request_id TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', created_at REAL NOT NULL,
    rows INTEGER NOT NULL DEFAULT 0, tokens INTEGER NOT NULL DEFAULT 0,
    digest TEXT, source TEXT NOT NULL DEFAULT '', log_partition INTEGER NOT NULL,
    first_offset INTEGER NOT NULL, last_offset INTEGER NOT NULL, trained INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, request_id), UNIQUE (tenant, digest)
);
CREATE INDEX IF NOT EXISTS request_state ON request (state, tenant, number);
CREATE TABLE IF NOT EXISTS tenant (
    tenant TEXT PRIMARY KEY, requests INTEGER NOT NULL DEFAULT 0, tokens INTEGER NOT NULL DEFAULT 0,
    tokens_at_update INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS left_out (
    tenant TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (tenant, reason)
);
CREATE TABLE IF NOT EXISTS drafter_update (
    update_id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, state TEXT NOT NULL,
    version INTEGER NOT NULL, plan BLOB NOT NULL, report BLOB, run_id TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS observation (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, created_at REAL NOT NULL,
    arm TEXT NOT NULL, version INTEGER NOT NULL, verify_steps INTEGER NOT NULL, drafted INTEGER NOT NULL,
    accepted INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS observation_tenant ON observation (tenant, number);
CREATE TABLE IF NOT EXISTS erasure (tenant TEXT PRIMARY KEY, done TEXT NOT NULL);
"""
_STORED: Final = (
    "number, tenant, request_id, rows, tokens, digest, created_at, log_partition, first_offset, last_offset,"
    " trained"
)

_TABLES: Final = ("trace", "part", "request", "tenant", "left_out", "drafter_update", "observation")

EXCESS: Final = "excess"
"""Why a request was left out: too many of its tenant waited."""


class Entry(NamedTuple):
    """A trace as it came from the log."""

    record: TraceRecord
    value: bytes
    """The same, encoded."""
    partition: int
    offset: int
    left_out: str = ""
    """Why nothing of it is kept; empty where it is."""


class Entered(NamedTuple):
    """What became of a batch of traces."""

    duplicates: int
    """Traces that were here before."""
    excess: int
    """Requests left out because too many of their tenant waited."""
    complete: list[tuple[str, int]]
    """Tenant and number of the requests whose segments are all here now."""


class Ledger:
    """Durable state of a learner; every method is one transaction. Used by one thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock: Final = clock
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        # Deleted rows are overwritten: no free page holds anybody's tokens.
        self._connection.execute("PRAGMA secure_delete=ON")
        self._connection.executescript(_SCHEMA)
        with self._transaction():
            self._upgrade()
            row = self._connection.execute("SELECT ledger_id FROM identity").fetchone()
            self.ledger_id: Final[str] = row[0] if row else uuid.uuid4().hex
            if row is None:
                self._connection.execute("INSERT INTO identity VALUES (?)", (self.ledger_id,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def enter(self, record: TraceRecord, partition: int, offset: int) -> bool:
        """Take one trace in; False if its trace_id is already here (nothing changes then)."""
        return not self.enter_many([Entry(record, encode(record), partition, offset)]).duplicates

    def pass_over(self, record: TraceRecord, partition: int, offset: int, reason: str) -> bool:
        """Mark a trace as consumed without keeping anything of it; False if it is already here."""
        return not self.enter_many([Entry(record, b"", partition, offset, reason)]).duplicates

    def enter_many(
        self,
        entries: Sequence[Entry],
        waiting: Mapping[str, int] | None = None,
        most_waiting: int = sys.maxsize,
    ) -> Entered:
        """Take traces in, in one transaction: all of them or, if this raises, none.

        Args:
            entries: Traces in the order of the log.
            waiting: Complete requests that wait for assembly already, by tenant.
            most_waiting: While this many requests of a tenant wait, its new ones are left out as `excess`.
        """
        waits = Counter(waiting or {})
        duplicates = excess = 0
        complete: list[tuple[str, int]] = []
        with self._transaction():
            for entry in entries:
                record = entry.record
                if not self._consume(record, entry.partition, entry.offset):
                    duplicates += 1
                elif entry.left_out:
                    self._count(record.tenant, entry.left_out)
                else:
                    self._observe(record)
                    number, state = self._open(entry, full=waits[record.tenant] >= most_waiting)
                    excess += state is None
                    if state is RequestState.OPEN and self._add_part(entry):
                        complete.append((record.tenant, number))
                        waits[record.tenant] += 1
        return Entered(duplicates, excess, complete)

    def waiting_requests(self) -> list[tuple[str, int]]:
        """Tenant and number of the open requests whose segments are all here, in order of arrival."""
        return self._connection.execute(
            "SELECT r.tenant, r.number FROM request r JOIN part p USING (tenant, request_id)"
            " WHERE r.state = ? GROUP BY r.number HAVING max(p.finished) = 1"
            " AND count(*) = 1 + max(CASE WHEN p.finished THEN p.segment END) ORDER BY r.number",
            (RequestState.OPEN,),
        ).fetchall()

    def complete_requests(self) -> list[int]:
        """Numbers of `waiting_requests`."""
        return [number for _, number in self.waiting_requests()]

    def stale_requests(self, before: float) -> list[int]:
        """Numbers of the open requests whose newest trace is older than `before` (Unix seconds)."""
        rows = self._connection.execute(
            "SELECT number FROM request WHERE state = ? AND created_at < ?", (RequestState.OPEN, before)
        )
        return [number for (number,) in rows]

    def parts(self, number: int) -> list[TraceRecord]:
        """Every segment of an open request, in order."""
        rows = self._connection.execute(
            "SELECT p.record FROM part p JOIN request r USING (tenant, request_id) WHERE r.number = ?"
            " ORDER BY p.segment",
            (number,),
        )
        return [decode(record, TraceRecord) for (record,) in rows]

    def mark_ready(self, number: int, *, rows: int, tokens: int, digest: str, source: str) -> bool:
        """Count a request as stored for replay; False if the tenant's replay has held the same tokens before.

        Args:
            number: An open request.
            rows: Its prompt and answer tokens.
            tokens: Its answer tokens.
            digest: sha256 (hex) of its token ids.
            source: Names the target and layers its features come from.
        """
        with self._transaction():
            tenant = self._tenant_of(number)
            repeated = self._connection.execute(
                "SELECT 1 FROM request WHERE tenant = ? AND digest = ?", (tenant, digest)
            ).fetchone()
            if repeated:
                self._leave_out(number, tenant, "repeated")
                return False
            self._connection.execute(
                "UPDATE request SET state = ?, rows = ?, tokens = ?, digest = ?, source = ? WHERE number = ?",
                (RequestState.READY, rows, tokens, digest, source, number),
            )
            self._drop_parts(number)
            self._connection.execute(
                "INSERT INTO tenant (tenant, requests, tokens) VALUES (?, 1, ?) ON CONFLICT (tenant)"
                " DO UPDATE SET requests = requests + 1, tokens = tokens + excluded.tokens",
                (tenant, tokens),
            )
        return True

    def leave_out(self, number: int, reason: str) -> None:
        """Give a request up, for a reason that is counted."""
        with self._transaction():
            self._leave_out(number, self._tenant_of(number), reason)

    def evict(self, numbers: Iterable[int]) -> None:
        """Mark requests as removed from the replay."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE request SET state = ? WHERE number = ?", [(RequestState.EVICTED, n) for n in numbers]
            )

    def ready(self, tenant: str) -> list[StoredRequest]:
        """The tenant's replay, in order of arrival."""
        rows = self._connection.execute(
            f"SELECT {_STORED} FROM request WHERE tenant = ? AND state = ? ORDER BY number",  # noqa: S608  # constant
            (tenant, RequestState.READY),
        )
        return [_stored(row) for row in rows]

    def foreign(self, source: str) -> list[StoredRequest]:
        """Requests whose features come from another target or other layers than `source` names."""
        rows = self._connection.execute(
            f"SELECT {_STORED} FROM request WHERE state = ? AND source != ?",  # noqa: S608  # constant
            (RequestState.READY, source),
        )
        return [_stored(row) for row in rows]

    def tenants(self) -> dict[str, TenantCounters]:
        """Counters of every tenant that traces came from."""
        left_out: dict[str, dict[str, int]] = {}
        for tenant, reason, count in self._connection.execute("SELECT tenant, reason, count FROM left_out"):
            left_out.setdefault(tenant, {})[reason] = count
        rows = self._connection.execute(
            "SELECT tenant, requests, tokens, tokens_at_update, (SELECT coalesce(max(update_id), 0)"
            " FROM drafter_update u WHERE u.tenant = t.tenant) FROM tenant t"
        )
        found = {
            tenant: TenantCounters(tenant, requests, tokens, at_update, left_out.get(tenant, {}), last_update)
            for tenant, requests, tokens, at_update, last_update in rows
        }
        return {
            tenant: TenantCounters(tenant, left_out=counts) for tenant, counts in left_out.items()
        } | found

    def observations(self, after: int = 0) -> list[Observation]:
        """How drafts did while serving, in order of arrival, behind an observation's number."""
        rows = self._connection.execute(
            "SELECT number, tenant, created_at, arm, version, verify_steps, drafted, accepted"
            " FROM observation WHERE number > ? ORDER BY number",
            (after,),
        )
        return [
            Observation(number, tenant, created_at, Arm(arm), version, steps, drafted, accepted)
            for number, tenant, created_at, arm, version, steps, drafted, accepted in rows
        ]

    def trim_observations(self, tenant: str, most: int) -> None:
        """Keep a tenant's newest observations."""
        with self._transaction():
            self._connection.execute(
                "DELETE FROM observation WHERE tenant = ?1 AND number <= (SELECT number FROM observation"
                " WHERE tenant = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
                (tenant, most),
            )

    def begin_update(self, plan: UpdatePlan) -> Update:
        """Store a plan; its training requests count as trained from here on."""
        with self._transaction():
            cursor = self._connection.execute(
                "INSERT INTO drafter_update (tenant, state, version, plan) VALUES (?, ?, ?, ?)",
                (plan.tenant, UpdateState.TRAINING, plan.version, msgspec.msgpack.encode(plan)),
            )
            self._connection.executemany(
                "UPDATE request SET trained = 1 WHERE number = ?", [(number,) for number in plan.training]
            )
            self._connection.execute(
                "UPDATE tenant SET tokens_at_update = tokens WHERE tenant = ?", (plan.tenant,)
            )
        assert cursor.lastrowid is not None
        return Update(cursor.lastrowid, UpdateState.TRAINING, plan)

    def advance_update(
        self,
        update: Update,
        state: UpdateState,
        *,
        report: UpdateReport | None = None,
        run_id: str | None = None,
    ) -> Update:
        """Store an update's next state."""
        report = update.report if report is None else report
        run_id = update.run_id if run_id is None else run_id
        with self._transaction():
            self._connection.execute(
                "UPDATE drafter_update SET state = ?, report = ?, run_id = ? WHERE update_id = ?",
                (state, msgspec.msgpack.encode(report) if report else None, run_id, update.update_id),
            )
        return Update(update.update_id, state, update.plan, report, run_id)

    def unfinished_update(self) -> Update | None:
        """The update that was going on when the learner last ran, if any."""
        return next(iter(self._updates("state NOT IN (?, ?, ?)", tuple(FINISHED_STATES))), None)

    def unrecorded(self) -> list[Update]:
        """Ended updates that no MLflow run describes yet, oldest first."""
        return self._updates("state IN (?, ?) AND run_id = ''", (UpdateState.PUBLISHED, UpdateState.REFUSED))

    def updates(self, tenant: str) -> list[Update]:
        """Every update of a tenant, oldest first."""
        return self._updates("tenant = ?", (tenant,))

    def _updates(self, condition: str, values: tuple[str, ...]) -> list[Update]:
        rows = self._connection.execute(
            "SELECT update_id, state, plan, report, run_id FROM drafter_update"  # noqa: S608  # constants above
            f" WHERE {condition} ORDER BY update_id",
            values,
        )
        return [
            Update(
                update_id,
                UpdateState(state),
                msgspec.msgpack.decode(plan, type=UpdatePlan),
                msgspec.msgpack.decode(report, type=UpdateReport) if report else None,
                run_id,
            )
            for update_id, state, plan, report, run_id in rows
        ]

    def update_ids(self) -> list[int]:
        """Numbers of all updates."""
        return [number for (number,) in self._connection.execute("SELECT update_id FROM drafter_update")]

    def forget(self, tenant: str) -> dict[str, int]:
        """Delete every row about a tenant, in the write-ahead log too; returns how many, per table."""
        counts = {}
        with self._transaction():
            for table in _TABLES:
                cursor = self._connection.execute(
                    f"DELETE FROM {table} WHERE tenant = ?",  # noqa: S608  # constants above
                    (tenant,),
                )
                counts[table] = cursor.rowcount
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return counts

    def prune(self, before: float) -> int:
        """Forget traces entered before `before` (Unix seconds), and requests of then that are in no replay.

        Once the log cannot deliver a trace again, nothing asks for it. Returns how many traces there were.
        """
        with self._transaction():
            traces = self._connection.execute("DELETE FROM trace WHERE entered_at < ?", (before,)).rowcount
            self._connection.execute(
                "DELETE FROM request WHERE state IN (?, ?) AND created_at < ?",
                (RequestState.EVICTED, RequestState.LEFT_OUT, before),
            )
        return traces

    def note_erasure(self, tenant: str, done: str) -> None:
        """Remember which erasure of a tenant is done."""
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO erasure VALUES (?, ?)", (tenant, done))

    def erasures_done(self) -> dict[str, str]:
        """By tenant, what `note_erasure` was told last."""
        return dict(self._connection.execute("SELECT tenant, done FROM erasure").fetchall())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # A full disk may have rolled back already, or have left the transaction open at its end.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _upgrade(self) -> None:
        """Add what ledgers of earlier releases lack."""
        columns = {row[1] for row in self._connection.execute("PRAGMA table_info(trace)")}
        if "entered_at" not in columns:
            self._connection.execute("ALTER TABLE trace ADD COLUMN entered_at REAL NOT NULL DEFAULT 0")
            self._connection.execute("UPDATE trace SET entered_at = ?", (self._clock(),))

    def _consume(self, record: TraceRecord, partition: int, offset: int) -> bool:
        cursor = self._connection.execute(
            "INSERT OR IGNORE INTO trace VALUES (?, ?, ?, ?, ?)",
            (record.trace_id, record.tenant, partition, offset, self._clock()),
        )
        return cursor.rowcount == 1

    def _open(self, entry: Entry, *, full: bool) -> tuple[int, RequestState | None]:
        """Number and state of an entry's request; the state is None where it is new and there is no room."""
        record = entry.record
        row = self._connection.execute(
            "UPDATE request SET created_at = max(created_at, ?), first_offset = min(first_offset, ?),"
            " last_offset = max(last_offset, ?) WHERE tenant = ? AND request_id = ? RETURNING number, state",
            (record.created_at, entry.offset, entry.offset, record.tenant, record.request_id),
        ).fetchone()
        if row is not None:
            return row[0], RequestState(row[1])
        cursor = self._connection.execute(
            "INSERT INTO request"
            " (tenant, request_id, state, reason, created_at, log_partition, first_offset, last_offset)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.tenant,
                record.request_id,
                RequestState.LEFT_OUT if full else RequestState.OPEN,
                EXCESS if full else "",
                record.created_at,
                *(entry.partition, entry.offset, entry.offset),
            ),
        )
        if full:
            self._count(record.tenant, EXCESS)
        assert cursor.lastrowid is not None
        return cursor.lastrowid, None if full else RequestState.OPEN

    def _observe(self, record: TraceRecord) -> None:
        self._connection.executemany(
            "INSERT INTO observation (tenant, created_at, arm, version, verify_steps, drafted, accepted)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [msgspec.structs.astuple(one)[1:] for one in observe(record)],
        )

    def _add_part(self, entry: Entry) -> bool:
        """Keep a segment of an open request; whether the request is complete now."""
        record = entry.record
        self._connection.execute(
            "INSERT OR IGNORE INTO part VALUES (?, ?, ?, ?, ?)",
            (record.tenant, record.request_id, record.segment, record.finished, entry.value),
        )
        if record.finished and record.segment == 0:
            return True
        count, last = self._connection.execute(
            "SELECT count(*), max(CASE WHEN finished THEN segment END) FROM part"
            " WHERE tenant = ? AND request_id = ?",
            (record.tenant, record.request_id),
        ).fetchone()
        return last is not None and count == last + 1

    def _tenant_of(self, number: int) -> str:
        row = self._connection.execute("SELECT tenant FROM request WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise KeyError(f"the ledger has no request {number}")
        return str(row[0])

    def _leave_out(self, number: int, tenant: str, reason: str) -> None:
        self._connection.execute(
            "UPDATE request SET state = ?, reason = ? WHERE number = ?",
            (RequestState.LEFT_OUT, reason, number),
        )
        self._drop_parts(number)
        self._count(tenant, reason)

    def _drop_parts(self, number: int) -> None:
        self._connection.execute(
            "DELETE FROM part WHERE (tenant, request_id) ="
            " (SELECT tenant, request_id FROM request WHERE number = ?)",
            (number,),
        )

    def _count(self, tenant: str, reason: str) -> None:
        self._connection.execute(
            "INSERT INTO left_out VALUES (?, ?, 1)"
            " ON CONFLICT (tenant, reason) DO UPDATE SET count = count + 1",
            (tenant, reason),
        )


def _stored(row: tuple[Any, ...]) -> StoredRequest:
    fields = dict(zip(StoredRequest.__struct_fields__, row, strict=True))
    return msgspec.convert(fields, StoredRequest, strict=False)  # SQLite has no booleans
