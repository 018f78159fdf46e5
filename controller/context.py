"""What the routes work with; made once by the composition root."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from sqlalchemy.orm import Session

    from collectors.store import TensorStore
    from controller.database import Database
    from controller.erasing import ErasureWorker
    from controller.lease import LeaderLease
    from controller.metrics import Metrics
    from controller.tenants import Defaults, Floor
    from controller.workers import PolicyWorker, RelayWorker


@dataclass(frozen=True, slots=True)
class Control:
    """Parts of one controller process."""

    database: Database
    store: TensorStore
    lease: LeaderLease
    relay: RelayWorker
    policy: PolicyWorker
    erasure: ErasureWorker
    metrics: Metrics
    defaults: Defaults
    floors: Mapping[str, Floor]
    learner_status: Path
    clock: Callable[[], float]

    @contextmanager
    def change(self) -> Iterator[Session]:
        """Open a write transaction whose messages leave as soon as it is committed."""
        with self.database.write() as session:
            yield session
        self.relay.wake()


def _control(request: Request) -> Control:
    control = request.app.state.control
    assert isinstance(control, Control)
    return control


ControlDependency = Annotated[Control, Depends(_control)]
