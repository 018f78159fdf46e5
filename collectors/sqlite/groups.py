"""Consumer groups of the embedded log: members with a heartbeat, and one lease per partition.

Every member computes the same assignment from the live members (round-robin over sorted ids), gives up what
is no longer its own and takes what is its own and free. So a partition moves only when its holder let go of
it between two polls, left, or stopped renewing its membership (it died).
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from typing import TYPE_CHECKING, Final

import structlog

from collectors.transport import TransportError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from collectors.sqlite.database import Database

_log = structlog.get_logger(__name__)


class Membership:
    """One consumer's place in a group; a thread renews it so that long work between polls costs nothing.

    Args:
        database: The log file.
        group: Name of the group.
        topics: Topics this member reads.
        lease_seconds: A member that has not renewed for this long counts as dead.
        clock: Unix seconds.
    """

    def __init__(
        self,
        database: Database,
        group: str,
        topics: Sequence[str],
        lease_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.group: Final = group
        self.id: Final = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._database: Final = database
        self._topics: Final = json.dumps(sorted(topics))
        self._lease_seconds: Final = lease_seconds
        self._clock: Final = clock
        self._left: Final = threading.Event()
        self.renew()
        self._thread: Final = threading.Thread(target=self._beat, name=f"log-heartbeat-{group}", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Say that this member is alive; joins the group again if it was thought dead."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?)",
                (self.group, self.id, self._topics, self._clock() + self._lease_seconds),
            )

    def partitions(self) -> dict[int, int]:
        """Settle which partitions are this member's now.

        Returns:
            Partition id -> committed next offset (0 where the group has none yet).
        """
        with self._database.read() as connection:
            owed, held, taken, stray = self._claims(connection)
        if owed - taken != held or stray:
            with self._database.write() as connection:
                owed, held, taken, stray = self._claims(connection)
                self._apply(connection, owed, held, taken, stray)
                held = owed - taken
            _log.info("partitions assigned", group=self.group, member=self.id, partitions=len(held))
        with self._database.read() as connection:
            offsets = dict(
                connection.execute(
                    "SELECT part_id, next_offset FROM committed WHERE consumer_group = ?", (self.group,)
                ).fetchall()
            )
        return {part: offsets.get(part, 0) for part in held}

    def commit(self, offsets: dict[int, int]) -> set[int]:
        """Store next offsets of the partitions this member still holds; returns those it does not."""
        lost = set()
        with self._database.write() as connection:
            for part, offset in offsets.items():
                holder = connection.execute(
                    "SELECT member FROM lease WHERE consumer_group = ? AND part_id = ?", (self.group, part)
                ).fetchone()
                if holder is None or holder[0] != self.id:
                    lost.add(part)
                    continue
                connection.execute(
                    "INSERT OR REPLACE INTO committed VALUES (?, ?, ?)", (self.group, part, offset)
                )
        return lost

    def leave(self) -> None:
        """Give every partition up and stop the heartbeat."""
        if self._left.is_set():
            return
        self._left.set()
        self._thread.join()
        mine = (self.group, self.id)
        try:
            with self._database.write() as connection:
                connection.execute("DELETE FROM lease WHERE consumer_group = ? AND member = ?", mine)
                connection.execute("DELETE FROM member WHERE consumer_group = ? AND id = ?", mine)
        except TransportError as error:
            _log.warning("left the group without saying so: its leases will expire", error=str(error))

    def _claims(self, connection: sqlite3.Connection) -> tuple[set[int], set[int], set[int], set[int]]:
        """Partition ids owed to this member, held by it, by other live members, and by dead ones."""
        members = connection.execute(
            "SELECT id, topics FROM member WHERE consumer_group = ? AND (expires_at > ? OR id = ?) "
            "ORDER BY id",
            (self.group, self._clock(), self.id),
        ).fetchall()
        live = {member for member, _ in members}
        owed = set()
        for topic in json.loads(self._topics):
            readers = [member for member, topics in members if topic in json.loads(topics)]
            if self.id not in readers:
                readers = sorted([*readers, self.id])
            parts = connection.execute(
                "SELECT part.id FROM part JOIN topic ON topic.id = part.topic_id WHERE topic.name = ? "
                "ORDER BY number",
                (topic,),
            ).fetchall()
            mine = readers.index(self.id)
            owed |= {part for index, (part,) in enumerate(parts) if index % len(readers) == mine}
        leases = connection.execute(
            "SELECT part_id, member FROM lease WHERE consumer_group = ?", (self.group,)
        ).fetchall()
        held = {part for part, member in leases if member == self.id}
        taken = {part for part, member in leases if member != self.id and member in live}
        return (
            owed,
            held,
            taken,
            {part for part, member in leases if member != self.id and member not in live},
        )

    def _apply(
        self, connection: sqlite3.Connection, owed: set[int], held: set[int], taken: set[int], stray: set[int]
    ) -> None:
        for part in stray | (held - owed):
            connection.execute(
                "DELETE FROM lease WHERE consumer_group = ? AND part_id = ?", (self.group, part)
            )
        connection.execute(
            "DELETE FROM member WHERE consumer_group = ? AND expires_at <= ? AND id != ?",
            (self.group, self._clock(), self.id),
        )
        for part in owed - taken - held:
            connection.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?)", (self.group, part, self.id))

    def _beat(self) -> None:
        while not self._left.wait(self._lease_seconds / 4):
            try:
                self.renew()
            except TransportError as error:
                _log.warning("heartbeat failed", group=self.group, error=str(error))
        self._database.close_thread()
