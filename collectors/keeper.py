"""Keeps the tensor store within its limits, from a thread of whichever process is told to."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from adaptive.contracts import TOPIC_TENANT_CHANGED, TenantChanged
from collectors.open import open_transport
from collectors.orphans import Collected, FeatureQuota, collect
from collectors.state import CompactedView
from collectors.store import TensorStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adaptive.settings import Settings
    from collectors.transport import Transport

_log = structlog.get_logger(__name__)

ROUND_SECONDS: Final = 600.0
ORPHAN_ROUNDS: Final = 36
"""Orphans are looked for in every so many rounds, for that reads the whole log."""
_DAY: Final = 86_400.0


class StoreKeeper:
    """Collects feature objects in rounds.

    Args:
        settings: Where log and store are, and what is kept of a tenant that does not say.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._rounds = 0

    def round(self) -> Collected:
        """Collect once; in the first round, and every `ORPHAN_ROUNDS` after it, orphans too.

        Raises:
            StoreUnavailableError, TransportUnavailableError: store or log is away.
        """
        transport = open_transport(self._settings.resolved_log_url)
        try:
            found = collect(
                TensorStore(self._settings.resolved_store_url),
                self._quotas(transport),
                transport if self._rounds % ORPHAN_ROUNDS == 0 else None,
            )
        finally:
            transport.close()
        self._rounds += 1
        return found

    def run(self, stop: threading.Event) -> None:
        """Collect until told to stop; a round that fails is logged, and the next one tries again."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                self.round()
            except Exception as error:  # noqa: BLE001 - housekeeping must not end whoever hosts it
                _log.warning("tensor store not tidied", error=str(error))
            stop.wait(max(1.0, ROUND_SECONDS - (time.monotonic() - began)))

    def _quotas(self, transport: Transport) -> Callable[[str], FeatureQuota]:
        """What is kept per tenant: its account's limits, the service's where it has none."""
        with CompactedView(transport, TOPIC_TENANT_CHANGED, TenantChanged) as view:
            view.poll()
            accounts = dict(view.latest)
        seconds = self._settings.feature_retention_days * _DAY
        most = self._settings.feature_quota_bytes

        def quota(tenant: str) -> FeatureQuota:
            account = accounts.get(tenant)
            own_seconds = account.retention_seconds if account is not None else None
            own_bytes = account.retention_bytes if account is not None else None
            return FeatureQuota(
                seconds if own_seconds is None else own_seconds, most if own_bytes is None else own_bytes
            )

        return quota


@contextmanager
def store_kept(settings: Settings) -> Iterator[None]:
    """Keep the store within its limits as long as this lasts."""
    stop = threading.Event()
    thread = threading.Thread(
        target=StoreKeeper(settings).run, args=(stop,), name="store-keeper", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)
