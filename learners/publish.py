"""Putting a version out: the file into the tensor store, then the announcement into the log."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final, Protocol

from adaptive.contracts import TOPIC_DRAFTER_PUBLISHED, AdapterReference, DrafterPublished, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from collectors.store import StoredObject
    from learners.records import UpdateReport

_FLUSH_SECONDS: Final = 30.0


class AdapterStore(Protocol):
    """Where adapter files go."""

    def put_file(self, tenant: str, name: str, path: Path) -> StoredObject:
        """Store a file under `name`, durable when this returns."""


class AnnouncementLog(Protocol):
    """Where versions are announced."""

    def send(self, topic: str, key: str, value: bytes | None) -> None:
        """Append one record."""

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is durable."""


class VersionPublisher:
    """Publishes versions; doing it twice announces the same version again, which changes nothing."""

    def __init__(
        self,
        store: AdapterStore,
        log: AnnouncementLog,
        clock: Callable[[], float] = time.time,
        lineage: Iterable[str] = (),
    ) -> None:
        self._store: Final = store
        self._log: Final = log
        self._clock: Final = clock
        self._lineage: Final = frozenset(lineage)
        """Tenants whose data is in turbo, and so in every adapter on it."""

    def publish(self, report: UpdateReport, adapter: Path, run_id: str) -> DrafterPublished:
        """Store the adapter, then announce it, so that nobody hears of a version that is not there.

        The object's name holds its checksum, so that no other bytes ever take its place, not even those of
        a learner that lost its ledger and counts its versions anew.

        Args:
            report: Of an update that passed the gate.
            adapter: The challenger's file.
            run_id: Of its MLflow run, empty if MLflow was away.

        Raises:
            StoreError, TransportError: the store or the log refused; nothing was announced.
        """
        plan = report.plan
        with adapter.open("rb") as source:
            sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        name = f"adapters/{plan.version:06d}-{sha256[:12]}.safetensors"
        stored = self._store.put_file(plan.tenant, name, adapter)
        message = DrafterPublished(
            adapter=AdapterReference(
                tenant=plan.tenant,
                version=plan.version,
                uri=stored.uri,
                sha256=stored.sha256,
                target_sha256=plan.target_sha256,
                turbo_sha256=plan.turbo_sha256,
                rank=plan.rank,
            ),
            created_at=self._clock(),
            turbo=report.turbo,
            challenger=report.challenger,
            champion=report.champion,
            gain_lower=report.gain_lower,
            gain_upper=report.gain_upper,
            tokens_trained=plan.tokens,
            training_seconds=report.training_seconds,
            mlflow_run_id=run_id,
            trace_first_offset=plan.first_offset,
            trace_last_offset=plan.last_offset,
            seed=plan.seed,
            derived_from=sorted(
                {plan.tenant, *self._lineage, *([plan.warm_start.tenant] if plan.warm_start else [])}
            ),
        )
        self._log.send(TOPIC_DRAFTER_PUBLISHED, plan.tenant, encode(message))
        self._log.flush(_FLUSH_SECONDS)
        return message
