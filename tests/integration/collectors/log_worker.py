"""What the contract tests run in other processes: `log_worker.py URL LEASE_SECONDS TASK JSON_ARGUMENTS`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import adaptive.log
from collectors.consumer import TraceConsumer
from collectors.open import open_transport
from learners.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.transport import Transport


def tell(line: str) -> None:
    """Report a line to the test at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def append(transport: Transport, topic: str, name: str, count: int, start_at: float = 0.0) -> None:
    """Send numbered records, one by one, under the key `name`, from a Unix time on."""
    time.sleep(max(0.0, start_at - time.time()))
    for number in range(count):
        transport.send(topic, name, f"{name}:{number}".encode())


def consume(transport: Transport, topic: str, group: str, commit: bool) -> None:
    """Say ready once the group is joined, then poll for ever and tell what came, one JSON line per record."""
    consumer = transport.consumer([topic], group)
    tell("ready")
    while True:
        for record in consumer.poll(0.1):
            tell(json.dumps([record.partition, record.offset, record.key]))
        if commit:
            consumer.commit()


def learn(transport: Transport, group: str, ledger: str) -> None:
    """Enter traces in a learner's ledger, tell how many are there, and never commit."""
    entered = 0
    taken = Ledger(Path(ledger))
    consumer = TraceConsumer(transport, group)
    while True:
        for each in consumer.poll(0.1, max_records=10):
            entered += taken.enter(each.message, each.partition, each.offset)
        tell(str(entered))


def hold(transport: Transport, seconds: float) -> None:
    """Keep the embedded log's write lock for a while."""
    with transport._database.write():  # type: ignore[attr-defined]  # embedded log only
        tell("locked")
        time.sleep(seconds)


if __name__ == "__main__":
    adaptive.log.configure("worker")
    url, lease_seconds, task, arguments = sys.argv[1:]
    opened = open_transport(url, lease_seconds=float(lease_seconds))
    tasks: dict[str, Callable[..., None]] = {
        "append": append,
        "consume": consume,
        "hold": hold,
        "learn": learn,
    }
    tasks[task](opened, **json.loads(arguments))
    opened.close()
