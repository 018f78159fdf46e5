"""What a learner does when a tenant is erased: everything it holds of it goes, and it says so.

Whatever is done can be done again: a learner killed in the middle finds in its ledger that the erasure is not
done, and does all of it once more.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from adaptive.contracts import TOPIC_ERASURE_ACKNOWLEDGED, ErasureAcknowledged, RemovedItems, encode
from collectors.adapter_files import remove_adapters
from learners.mlflow import TrackingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from adaptive.contracts import TenantChanged, TenantErased
    from learners.ledger import Ledger
    from learners.paths import LearnerPaths
    from learners.replay import Replay

_log = structlog.get_logger(__name__)

PROCESS: Final = "learner"
RETRY_SECONDS: Final = 10.0
_FLUSH_SECONDS: Final = 10.0


class Erasures(Protocol):
    """Every erasure that the log knows."""

    @property
    def latest(self) -> Mapping[str, TenantErased]:
        """By tenant."""

    def poll(self) -> object:
        """Bring `latest` up to date."""


class Accounts(Protocol):
    """Every tenant's account."""

    @property
    def latest(self) -> Mapping[str, TenantChanged]:
        """By tenant."""


class TrackingEraser(Protocol):
    """Removes tenants from MLflow; TrackingError: not yet."""

    def erase(self, tenant: str) -> dict[str, int]:
        """Remove a tenant; returns how many of what there were."""


class AnswerLog(Protocol):
    """Where erasures are acknowledged."""

    def send(self, topic: str, key: str, value: bytes | None) -> None:
        """Append one record."""

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is durable."""


class Forgetting:
    """Follows the erasures.

    Args:
        erasures: Of the log.
        accounts: Of the log: a tenant created again after an erasure keeps what it has.
        ledger: Knows which erasures are done.
        replay: Stored requests.
        paths: Checkpoints, challengers and copies of champions.
        tracking: MLflow.
        log: For acknowledgements.
        turbo: sha256 of the turbo in use, and the tenants whose data is in it.
        clock: Unix seconds.
    """

    def __init__(
        self,
        erasures: Erasures,
        accounts: Accounts,
        ledger: Ledger,
        replay: Replay,
        paths: LearnerPaths,
        tracking: TrackingEraser,
        log: AnswerLog,
        *,
        turbo: tuple[str, Collection[str]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._erasures: Final = erasures
        self._accounts: Final = accounts
        self._ledger: Final = ledger
        self._replay: Final = replay
        self._paths: Final = paths
        self._tracking: Final = tracking
        self._log: Final = log
        self._turbo: Final = turbo
        self._clock: Final = clock
        self._done: Final = ledger.erasures_done()
        self._retry_at: Final[dict[str, float]] = {}
        self._said: Final[dict[str, str]] = {}

    def poll(self) -> list[str]:
        """Forget the tenants whose erasure is new, or could not be done before; returns them.

        Raises:
            TransportUnavailableError: the log is away; what is done stays done.
        """
        self._erasures.poll()
        forgotten = []
        for tenant, erased in list(self._erasures.latest.items()):
            key = _key(erased)
            if self._done.get(tenant) == key or self._clock() < self._retry_at.get(tenant, 0.0):
                continue
            account = self._accounts.latest.get(tenant)
            if account is None or account.generation <= erased.generation:
                forgotten.append(tenant)
                if not self._forget(erased):
                    self._retry_at[tenant] = self._clock() + RETRY_SECONDS
                    continue
            self._ledger.note_erasure(tenant, key)
            self._done[tenant] = key
            self._retry_at.pop(tenant, None)
        return forgotten

    def _forget(self, erased: TenantErased) -> bool:
        """Remove all there is; False while something must wait."""
        tenant = erased.tenant
        retired = [f"{tenant}@{update.plan.version}" for update in self._ledger.updates(tenant)]
        removed = {"learner replay": self._replay.forget(tenant)}
        removed |= {f"learner {place}": count for place, count in self._ledger.forget(tenant).items()}
        removed["learner checkpoints"] = self._sweep_updates()
        removed["learner champions"] = remove_adapters(
            self._paths.champions, {tenant}, {adapter.sha256 for adapter in erased.retired}
        )
        waiting = ""
        try:
            removed |= self._tracking.erase(tenant)
        except TrackingError as error:
            waiting = str(error)
        turbo, tenants = self._turbo
        if tenant in tenants:
            retired.append(f"turbo {turbo[:12]}")
            waiting = waiting or (
                f"turbo {turbo[:12]} was trained with this tenant's data: train another one and restart with "
                "it (ADAPTIVE_TURBO)"
            )
        self._acknowledge(erased, removed, sorted(set(retired)), waiting)
        _log.info("tenant forgotten", tenant=tenant, erasure=erased.erasure_id, waiting=waiting or None)
        return not waiting

    def _acknowledge(
        self, erased: TenantErased, removed: Mapping[str, int], retired: list[str], waiting: str
    ) -> None:
        if erased.sealed or (waiting and self._said.get(erased.erasure_id) == waiting):
            return
        answer = ErasureAcknowledged(
            tenant=erased.tenant,
            erasure_id=erased.erasure_id,
            process=PROCESS,
            acknowledged_at=self._clock(),
            done=not waiting,
            removed=[RemovedItems(place, count) for place, count in removed.items()],
            retired=retired,
            waiting=waiting,
        )
        self._log.send(TOPIC_ERASURE_ACKNOWLEDGED, erased.tenant, encode(answer))
        self._log.flush(_FLUSH_SECONDS)
        self._said[erased.erasure_id] = waiting

    def _sweep_updates(self) -> int:
        """Remove the files of updates that the ledger no longer knows."""
        known = {str(number) for number in self._ledger.update_ids()}
        gone = [path for path in _entries(self._paths.updates) if path.name.partition(".")[0] not in known]
        for path in gone:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        return len(gone)


def _entries(directory: Path) -> Iterable[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else ()


def _key(erased: TenantErased) -> str:
    return f"{erased.erasure_id}:{'sealed' if erased.sealed else 'announced'}"
