"""Messages for the log, written with the change that causes them and sent afterwards.

A crash between commit and send loses nothing: the rows are still there at the next start. A crash between
send and delete sends them again, in the same order, which readers of compacted topics do not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, func, select

from adaptive.contracts import (
    TOPIC_POLICY_DECIDED,
    TOPIC_TENANT_CHANGED,
    TOPIC_TENANT_ERASED,
    PolicyDecided,
    TenantChanged,
    TenantErased,
    encode,
)
from collectors.transport import OutgoingRecord
from controller.models import OutboxMessage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from collectors.transport import Transport
    from controller.database import Database
    from controller.lease import LeaderDatabase

BATCH: Final = 200
FLUSH_SECONDS: Final = 10.0


_TOPICS: Final = {
    PolicyDecided: TOPIC_POLICY_DECIDED,
    TenantChanged: TOPIC_TENANT_CHANGED,
    TenantErased: TOPIC_TENANT_ERASED,
}


def enqueue(session: Session, message: PolicyDecided | TenantChanged | TenantErased, now: float) -> None:
    """Add a message to the transaction of `session`."""
    topic = _TOPICS[type(message)]
    session.add(OutboxMessage(topic=topic, key=message.tenant, value=encode(message), created_at=now))


def enqueue_tombstone(session: Session, topic: str, key: str, now: float) -> None:
    """Remove a key from a compacted topic, with the transaction of `session`."""
    session.add(OutboxMessage(topic=topic, key=key, value=None, created_at=now))


def pending(session: Session) -> int:
    """Count the messages that have not reached the log."""
    return session.scalar(select(func.count()).select_from(OutboxMessage)) or 0


def relay(database: Database | LeaderDatabase, transport: Transport) -> int:
    """Send every pending message in order, oldest first.

    Returns:
        How many were sent.

    Raises:
        TransportUnavailableError: the log is away; what was not sent stays for the next call.
    """
    sent = 0
    while True:
        with database.read() as session:
            rows = session.scalars(select(OutboxMessage).order_by(OutboxMessage.id).limit(BATCH)).all()
        if not rows:
            return sent
        transport.send_many([OutgoingRecord(row.topic, row.key, row.value) for row in rows])
        transport.flush(FLUSH_SECONDS)
        with database.write() as session:
            session.execute(delete(OutboxMessage).where(OutboxMessage.id.in_([row.id for row in rows])))
        sent += len(rows)
