"""The learner: takes traces in and updates one tenant's drafter at a time (`ray.py` gives it a process)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from collectors.store import StoreUnavailableError
from collectors.transport import TransportUnavailableError
from learners.mlflow import TrackingError, UnknownVersionError
from learners.records import TenantCounters, UpdateState
from learners.selection import capacity_rows, evictions, expired
from learners.status import LearnerStatus, TenantStatus
from learners.traffic import WINDOW
from learners.updates import AbandonedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from threading import Event

    from adaptive.contracts import PolicyDecided
    from adaptive.settings import Settings
    from learners.erasure import Forgetting
    from learners.intake import Intake, TenantView
    from learners.ledger import Ledger
    from learners.records import Update
    from learners.replay import Replay
    from learners.scheduling import Scheduler
    from learners.updates import Updater

_log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 2.0
HOUSEKEEPING_SECONDS: Final = 60.0
ATTEMPTS: Final = 3
_VERSIONS_SHOWN: Final = 20


class ChampionMarks(Protocol):
    """Where people see which version serves."""

    def mark_champion(self, tenant: str, version: int | None) -> None:
        """Show that a version serves.

        Raises:
            UnknownVersionError: this version is not known there (yet); others may be.
            TrackingError: nothing can be shown for now.
        """


class PolicyUpdates(Protocol):
    """What serves each tenant, as it changes."""

    def poll(self) -> Mapping[str, PolicyDecided | None]:
        """What changed since the last poll."""


class StoppedError(Exception):
    """The learner was told to stop; the update goes on when it runs again."""


class Learner:
    """Runs until told to stop; every piece of state that matters is in ledger, replay and checkpoint."""

    def __init__(
        self,
        settings: Settings,
        *,
        ledger: Ledger,
        replay: Replay,
        intake: Intake,
        tenants: TenantView,
        policies: PolicyUpdates,
        updater: Updater,
        marks: ChampionMarks,
        scheduler: Scheduler,
        forgetting: Forgetting | None = None,
        feature_source: str,
        pause_file: Path,
        stop: Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings: Final = settings
        self._ledger: Final = ledger
        self._replay: Final = replay
        self._intake: Final = intake
        self._tenants: Final = tenants
        self._policies: Final = policies
        self._updater: Final = updater
        self._marks: Final = marks
        self._scheduler: Final = scheduler
        self._forgetting: Final = forgetting
        self._pause_file: Final = pause_file
        self._stop: Final = stop
        self._clock: Final = clock
        self._attempts: Final[dict[int, int]] = {}
        self._unmarked: Final[dict[str, int | None]] = {}
        self._history: Final[dict[str, TenantStatus]] = {}
        self._active: Update | None = None
        self._doing = "idle"
        self._paused = False
        self._error: str | None = None
        self._kept_house_at = -HOUSEKEEPING_SECONDS
        self._retention_seconds: Final = settings.retention_days * 86_400
        self.beat = time.monotonic()
        """When the learner last gave a sign of life (monotonic seconds)."""
        self.status = LearnerStatus("starting", clock())
        """Newest report; replaced whole, so any thread may read it."""
        foreign = ledger.foreign(feature_source)
        replay.remove(foreign)
        ledger.evict(request.number for request in foreign)

    def run(self) -> None:
        """Work until stopped. Errors are logged and shown in the status; work goes on after a pause."""
        while not self._stop.is_set():
            try:
                self.turn()
            except StoppedError:
                break
            except (StoreUnavailableError, TransportUnavailableError) as error:
                _log.warning("log or store away, trying again", error=str(error))
                self._error = str(error)
                self._stop.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001  # shown in the status; one tenant must not stop the rest
                _log.exception("learner turn failed")
                self._error = f"{type(error).__name__}: {error}"
                self._stop.wait(RETRY_SECONDS)
        self._report("stopped")

    def turn(self) -> None:
        """One round: take traces in, then bring one update (an interrupted one first) to its end."""
        self._take_in(POLL_SECONDS)
        self._wait_while_paused()
        update = self._ledger.unfinished_update()
        if update is None:
            self._keep_house()
            update = self._next_update()
        if update is not None:
            self._bring_to_its_end(update)
        self._error = None
        self._report("running")

    def _bring_to_its_end(self, update: Update) -> None:
        self._active = update
        try:
            ended = self._updater.proceed(update, self._at)
        except (StoppedError, StoreUnavailableError, TransportUnavailableError):
            raise
        except Exception:
            self._attempts[update.update_id] = self._attempts.get(update.update_id, 0) + 1
            if self._attempts[update.update_id] >= ATTEMPTS:
                self._remember(self._updater.abandon(update))
            raise
        finally:
            self._active, self._doing = None, "idle"
        self._remember(ended)

    def _next_update(self) -> Update | None:
        """Plan an update for the tenant that needs one most."""
        for tenant in self._due():
            self._trim(tenant)
            plan = self._updater.plan(tenant)
            if plan is not None:
                return self._ledger.begin_update(plan)
        return None

    def _due(self) -> list[str]:
        return self._scheduler.due(
            counters
            for tenant, counters in self._ledger.tenants().items()
            if self._blocked(tenant) is None and counters.tokens_since_update
        )

    def _blocked(self, tenant: str) -> str | None:
        """Why nothing may be learned for a tenant; None if it may."""
        account = self._tenants.latest.get(tenant)
        if account is None or not account.learn:
            return "off"
        return "frozen" if account.freeze else None

    def _at(self, doing: str) -> None:
        """Between two pieces of an update's work: take traces in, and stop, abandon or wait if asked to."""
        self._doing = doing
        try:
            self._take_in(0.0)
        except TransportUnavailableError as error:
            _log.warning("log away while training", error=str(error))
        self._wait_while_paused()
        assert self._active is not None
        blocked = self._blocked(self._active.plan.tenant)
        if blocked is not None:
            raise AbandonedError(f"learning is {blocked} for this tenant")

    def _take_in(self, timeout: float) -> None:
        self.beat = time.monotonic()
        if self._stop.is_set():
            raise StoppedError
        self._unmarked.update(
            (tenant, policy.champion.version if policy and policy.champion else None)
            for tenant, policy in self._policies.poll().items()
        )
        for tenant in self._forgetting.poll() if self._forgetting is not None else ():
            self._history.pop(tenant, None)
            self._scheduler.forget(tenant)
            self._unmarked.pop(tenant, None)
        self._intake.poll(timeout)
        self._scheduler.refresh()
        self._report("running")

    def _wait_while_paused(self) -> None:
        while self._pause_file.exists():
            self._paused = True
            self._take_in(POLL_SECONDS)
        self._paused = False

    def _trim(self, tenant: str) -> None:
        """Keep what the tenant's retention allows, and of that what the replay has room for."""
        requests = self._ledger.ready(tenant)
        settings, account = self._settings, self._tenants.latest.get(tenant)
        seconds = self._retention_seconds
        if account is not None and account.retention_seconds is not None:
            seconds = min(seconds, account.retention_seconds)
        gone = set(
            expired(
                requests,
                self._clock() - seconds,
                account.retention_bytes if account is not None else None,
                lambda number: self._replay.size(tenant, number),
            )
        )
        kept = [request for request in requests if request.number not in gone]
        capacity = capacity_rows(
            sum(request.rows for request in kept),
            sum(self._replay.size(tenant, request.number) for request in kept),
            most_rows=settings.replay_tokens,
            most_bytes=settings.replay_bytes,
        )
        gone |= set(evictions(kept, capacity, settings.seed))
        self._replay.remove(request for request in requests if request.number in gone)
        self._ledger.evict(gone)

    def _keep_house(self) -> None:
        """Now and then, while no update is going on."""
        if time.monotonic() - self._kept_house_at < HOUSEKEEPING_SECONDS:
            return
        self._kept_house_at = time.monotonic()
        self._intake.give_up_stale()
        for tenant in self._ledger.tenants():
            self._trim(tenant)
            self._ledger.trim_observations(tenant, WINDOW)
        # Twice: the log removes whole segments, and goes by the time at which it took a record in.
        self._ledger.prune(self._clock() - 2 * self._retention_seconds)
        self._updater.record_late()
        self._mark_champions()

    def _mark_champions(self) -> None:
        for tenant, version in list(self._unmarked.items()):
            try:
                if self._seen(tenant).versions:
                    self._marks.mark_champion(tenant, version)
                self._unmarked.pop(tenant)
            except TrackingError as error:
                _log.warning("champion alias not moved yet", tenant=tenant, error=str(error))
                if not isinstance(error, UnknownVersionError):
                    return

    def _seen(self, tenant: str) -> TenantStatus:
        """What past updates say about a tenant, read from the ledger once."""
        if tenant not in self._history:
            self._history[tenant] = TenantStatus()
            for update in self._ledger.updates(tenant):
                self._remember(update)
        return self._history[tenant]

    def _remember(self, update: Update) -> None:
        self._scheduler.ended(update)
        tenant = update.plan.tenant
        if tenant not in self._history:
            self._seen(tenant)
            return
        seen = self._history[tenant]
        seen.updates += 1
        if update.report is not None:
            seen.last_gain = update.report.gain_estimate
            seen.last_refusal = None if update.report.publish else update.report.reason
        if update.state is UpdateState.PUBLISHED:
            seen.versions = [*seen.versions, update.plan.version][-_VERSIONS_SHOWN:]

    def _report(self, state: str) -> None:
        counters = self._ledger.tenants()
        due = set(self._due()) | ({self._active.plan.tenant} if self._active else set())
        known = counters.keys() | {
            tenant for tenant, account in self._tenants.latest.items() if account.learn
        }
        self.status = LearnerStatus(
            state,
            self._clock(),
            paused=self._paused,
            updates_due=len(due),
            error=self._error,
            intake=self._intake.report(),
            tenants={
                tenant: self._tenant_status(tenant, counters.get(tenant), due) for tenant in sorted(known)
            },
        )

    def _tenant_status(self, tenant: str, counters: TenantCounters | None, due: set[str]) -> TenantStatus:
        seen = self._seen(tenant)
        decision = self._scheduler.decide(counters or TenantCounters(tenant))
        doing = self._blocked(tenant) or ("waiting" if tenant in due else "idle")
        if self._active is not None and self._active.plan.tenant == tenant:
            doing = self._doing
        return TenantStatus(
            requests=counters.requests if counters else 0,
            tokens_seen=counters.tokens if counters else 0,
            tokens_since_update=counters.tokens_since_update if counters else 0,
            left_out=counters.left_out if counters else {},
            training=doing,
            versions=list(seen.versions),
            last_gain=seen.last_gain,
            last_refusal=seen.last_refusal,
            updates=seen.updates,
            drifts=decision.drifts,
            training_seconds=decision.spent,
            training_seconds_today=decision.spent_today,
            expected_gain=decision.expected_gain,
            expected_saving_seconds=decision.payoff.saving_seconds,
            expected_cost_seconds=decision.payoff.cost_seconds,
            waiting_for=decision.why,
        )
