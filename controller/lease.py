"""Which of several controllers on one database acts: a lease with a fence, and no clock that two must share.

The holder counts up a beat in the database. Another takes the lease over when it has seen the same beat for a
while by its own monotonic clock, so neither a jump of a wall clock nor two clocks that differ move the lease.
Every write of the holder checks, in its own transaction, that it still holds the lease: a controller that was
stopped in the middle and goes on later writes nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import select

from controller.models import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from controller.database import Database

NAME: Final = "controller"
LEASE_SECONDS: Final = 10.0
"""How long the holder may be silent."""
BEAT_SECONDS: Final = 2.0

_log = structlog.get_logger(__name__)


class LeaseLostError(Exception):
    """Another controller acts now: what was begun here is rolled back, and done by it."""


class LeaderLease:
    """This process's hold on the lease.

    Args:
        database: Where the lease is.
        clock: Seconds that never go back; nobody else's clock is compared with it.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._me = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._term: int | None = None
        self._beat_at = 0.0
        self._seen: tuple[int, int] | None = None
        self._seen_at = 0.0

    @property
    def held(self) -> bool:
        """Whether this controller acts, as far as it knows."""
        return self._term is not None

    def hold(self) -> bool:
        """Take the lease if it is free or its holder silent, and give a sign of life now and then.

        Returns:
            Whether this controller acts.
        """
        with self._lock:
            if self._term is not None and self._clock() - self._beat_at < BEAT_SECONDS:
                return True
            with self._database.write() as session:
                row = session.get(Lease, NAME, with_for_update=True)
                if row is None:
                    row = Lease(name=NAME, holder="", term=0, beat=0)
                    session.add(row)
                term = self._claim(row)
            if term != self._term:
                _log.info("leadership", leads=term is not None, term=term)
            self._term, self._beat_at = term, self._clock()
            return term is not None

    def _claim(self, row: Lease) -> int | None:
        if self._term is not None and (row.holder, row.term) == (self._me, self._term):
            row.beat += 1
            return self._term
        if row.holder and not _gone(row.holder):
            if (row.term, row.beat) != self._seen:
                self._seen, self._seen_at = (row.term, row.beat), self._clock()
                return None
            if self._clock() - self._seen_at < LEASE_SECONDS:
                return None
        row.holder, row.term, row.beat = self._me, row.term + 1, 0
        return row.term

    def give_back(self) -> None:
        """Let another take over at once."""
        with self._lock:
            if self._term is None:
                return
            with self._database.write() as session:
                row = session.get_one(Lease, NAME, with_for_update=True)
                if (row.holder, row.term) == (self._me, self._term):
                    row.holder = ""
            self._term = None

    def check(self, session: Session) -> None:
        """Hold the lease as it is until the transaction of `session` ends.

        Raises:
            LeaseLostError: another controller has it.
        """
        query = select(Lease.term).where(Lease.name == NAME, Lease.holder == self._me)
        term = session.scalar(query.with_for_update(read=True))
        if term is None or term != self._term:
            self._term = None
            raise LeaseLostError("another controller leads: this one stands by")


class LeaderDatabase:
    """The database as a leader's workers see it: every write is fenced by the lease."""

    def __init__(self, database: Database, lease: LeaderLease) -> None:
        self._database = database
        self._lease = lease
        self.read = database.read
        self.scrub = database.scrub

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a write transaction that fails if another controller leads.

        Raises:
            LeaseLostError: it does; nothing is written.
        """
        with self._database.write() as session:
            self._lease.check(session)
            yield session


def _gone(holder: str) -> bool:
    """Whether the holder was a process of this host that has ended: a restart need not wait for silence."""
    host, process, _ = holder.rsplit(":", 2)
    if host != socket.gethostname()[:60]:
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
