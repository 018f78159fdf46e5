"""One update from plan to published version, or to a refusal that is recorded just as well.

Every state is durable before the next one begins (`UpdateState`), so whatever dies in between, the update
goes on from there: training from its checkpoint, publishing with the numbers that were decided on.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from adaptive.contracts import Arm
from learners.adapters import write_challenger
from learners.evaluation import score
from learners.judging import judge
from learners.manifest import MANIFEST, Fingerprints, Manifest, current_environment, used, write_manifest
from learners.mlflow import TrackingError
from learners.records import UpdatePlan, UpdateReport, UpdateState
from learners.replay import ReplayError
from learners.scoring import walked
from learners.selection import batch_tokens, split, token_steps, update_seed
from learners.training import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from adaptive.contracts import DrafterPublished, PolicyDecided, TenantErased
    from adaptive.settings import Settings
    from learners.adapters import Champions
    from learners.drafter import Drafter
    from learners.evaluation import Scored
    from learners.judging import Judgement
    from learners.ledger import Ledger
    from learners.records import StoredRequest, Update
    from learners.replay import Replay
    from learners.scoring import ArmScores
    from learners.training import Trained

_log = structlog.get_logger(__name__)


class Tracker(Protocol):
    """Records updates for people to look at."""

    def record(self, update: Update, directory: Path) -> str:
        """Record an update, once, with the files of its directory (adapter, manifest); returns the run id.

        Raises:
            TrackingError: try again later.
        """


class Publisher(Protocol):
    """Makes versions known."""

    def publish(self, report: UpdateReport, adapter: Path, run_id: str) -> DrafterPublished:
        """Store and announce a version."""


class PolicyView(Protocol):
    """What serves each tenant."""

    @property
    def latest(self) -> Mapping[str, PolicyDecided]:
        """By tenant."""


class PublishedView(Protocol):
    """The newest version announced for each tenant, whoever announced it."""

    @property
    def latest(self) -> Mapping[str, DrafterPublished]:
        """By tenant."""

    def poll(self) -> object:
        """Bring `latest` up to date."""


class ErasureView(Protocol):
    """Every erasure the log knows."""

    @property
    def latest(self) -> Mapping[str, TenantErased]:
        """By tenant."""


class AbandonedError(Exception):
    """An update must not go on; the message says why."""


class Updater:
    """Plans and runs updates."""

    def __init__(
        self,
        settings: Settings,
        *,
        drafter: Drafter,
        ledger: Ledger,
        replay: Replay,
        champions: Champions,
        policies: PolicyView,
        published: PublishedView,
        publisher: Publisher,
        erased: ErasureView | None = None,
        tracker: Tracker,
        scores: ArmScores,
        directory: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings: Final = settings
        self._drafter: Final = drafter
        self._ledger: Final = ledger
        self._replay: Final = replay
        self._champions: Final = champions
        self._policies: Final = policies
        self._published: Final = published
        self._publisher: Final = publisher
        self._erased: Final = erased
        self._tracker: Final = tracker
        self._scores: Final = scores
        self._directory: Final = directory
        self._clock: Final = clock
        self._trainer: Final = Trainer(drafter)

    def plan(self, tenant: str) -> UpdatePlan | None:
        """Fix an update's data, seed and start; None while the replay is too small for training and gate.

        Raises:
            TransportUnavailableError: the log is away, so the next version's number is not known.
        """
        chosen = split(self._ledger.ready(tenant))
        if not chosen.enough:
            return None
        settings, earlier = self._settings, self._ledger.updates(tenant)
        policy = self._policies.latest.get(tenant)
        champion = policy.champion if policy else None
        taken = [update.plan.version for update in earlier if update.state is UpdateState.PUBLISHED]
        taken += [champion.version] if champion else []
        self._published.poll()  # a lost ledger does not know what was published, the log does
        announced = self._published.latest.get(tenant)
        taken += [announced.adapter.version] if announced else []
        former = self._erased.latest.get(tenant) if self._erased is not None else None
        taken += [former.last_version] if former else []
        warm = (
            champion is not None
            and champion.rank == settings.rank
            and self._champions.load(champion) is not None
        )
        judged = {number for update in earlier if update.report for number in update.plan.holdout}
        tokens = sum(request.tokens for request in chosen.training)
        ordinal = len(earlier) + 1
        # Without a warm start everything is to be learned anew.
        fresh = sum(request.tokens for request in chosen.fresh) if warm else tokens
        budget = token_steps(fresh, tokens - fresh, settings.update_token_steps)
        partitions = {request.partition for request in chosen.training}
        spans = {
            partition: [request for request in chosen.training if request.partition == partition]
            for partition in sorted(partitions)
        }
        return UpdatePlan(
            tenant=tenant,
            ordinal=ordinal,
            version=max(taken, default=0) + 1,
            seed=update_seed(settings.seed, tenant, ordinal),
            training=tuple(request.number for request in chosen.training),
            fresh=tuple(request.number for request in chosen.fresh),
            holdout=tuple(request.number for request in chosen.holdout),
            warm_start=champion if warm else None,
            tokens=tokens,
            token_steps=budget,
            batch_tokens=batch_tokens(budget),
            learning_rate=settings.learning_rate,
            rank=settings.rank,
            unroll_depth=settings.unroll_depth,
            precision=self._drafter.precision,
            target_sha256=self._drafter.target_sha256,
            turbo_sha256=self._drafter.turbo_sha256,
            traces_until=max(request.created_at for request in chosen.training),
            first_offset={part: min(one.first_offset for one in span) for part, span in spans.items()},
            last_offset={part: max(one.last_offset for one in span) for part, span in spans.items()},
            objective=settings.objective,
            rejected_weight=settings.rejected_weight,
            judged=tuple(request.number for request in chosen.holdout if request.number in judged),
        )

    def proceed(self, update: Update, at: Callable[[str], None]) -> Update:
        """Bring an update to its end.

        Args:
            update: Unfinished, in any state.
            at: Told what is going on ("training step 3/40", "evaluating", "publishing") before each piece of
                work; may raise to stop, with nothing lost, or AbandonedError.

        Raises:
            StoreError, TransportError: publishing failed; the update stays evaluated, to go on later.
        """
        try:
            if update.state is UpdateState.TRAINING:
                update = self._train_and_judge(update, at)
            at("publishing")
        except (AbandonedError, ReplayError) as error:
            if isinstance(error, ReplayError):
                self._ledger.evict([error.number])
            _log.warning(
                "update abandoned", tenant=update.plan.tenant, update=update.plan.ordinal, why=str(error)
            )
            return self.abandon(update)
        return self._finish(update)

    def abandon(self, update: Update) -> Update:
        """Give an update up; nothing of it is published."""
        update = self._ledger.advance_update(update, UpdateState.ABANDONED)
        self._clean(update)
        return update

    def record_late(self) -> None:
        """Record the updates that MLflow was away for."""
        for update in self._ledger.unrecorded():
            run_id = self._record(update)
            if not run_id:
                return
            self._ledger.advance_update(update, update.state, run_id=run_id)
            self._clean(update)

    def _train_and_judge(self, update: Update, at: Callable[[str], None]) -> Update:
        plan = update.plan
        if (plan.target_sha256, plan.turbo_sha256, plan.precision) != (
            self._drafter.target_sha256,
            self._drafter.turbo_sha256,
            self._drafter.precision,
        ):
            raise AbandonedError("target, turbo or precision changed since it was planned")
        requests = {request.number: request for request in self._ledger.ready(plan.tenant)}
        if missing := set(plan.training + plan.holdout) - requests.keys():
            raise AbandonedError(f"{len(missing)} of its requests are no longer in the replay")
        fingerprints = Fingerprints(lambda number: self._replay.load(plan.tenant, number))
        warm_start = self._champions.load(plan.warm_start)
        trained = self._trainer.train(
            plan,
            {number: requests[number].tokens for number in plan.training},
            load=fingerprints.load,
            warm_start=warm_start,
            checkpoint=self._checkpoint(update),
            on_step=lambda step, steps: at(f"training step {step + 1}/{steps}"),
        )
        report = self._judge(update, trained, fingerprints, at, requests, warm_started=warm_start is not None)
        _log.info(
            "update evaluated",
            tenant=plan.tenant,
            update=plan.ordinal,
            publish=report.publish,
            reason=report.reason,
            tau={"turbo": report.turbo.tau, "challenger": report.challenger.tau},
            training_seconds=round(report.training_seconds, 1),
        )
        return self._ledger.advance_update(update, UpdateState.EVALUATED, report=report)

    def _judge(
        self,
        update: Update,
        trained: Trained,
        fingerprints: Fingerprints,
        at: Callable[[str], None],
        requests: Mapping[int, StoredRequest],
        *,
        warm_started: bool,
    ) -> UpdateReport:
        """Judge the challenger, and write it and the manifest to the update's directory."""
        plan, began = update.plan, time.monotonic()
        policy = self._policies.latest.get(plan.tenant)
        champion = self._champions.load(policy.champion) if policy else None
        serving = policy.champion if policy and champion is not None else None
        lookahead = max(1, self._settings.lookahead)
        judged = judge(
            self._drafter.head,
            trained.tensors,
            champion,
            [fingerprints.load(number) for number in plan.holdout],
            champion_weight=policy.weight if policy else 0.0,
            lookahead=lookahead,
            fresh=plan.fresh_evidence,
            between=lambda: at("evaluating"),
        )
        scores = (judged.turbo.total, judged.champion.total if judged.champion else None)
        self._tell(plan, judged, champion, policy, fingerprints, at, requests)
        sha256 = write_challenger(self._file(update), trained.tensors, plan)
        manifest = Manifest(
            plan=plan,
            training=used(plan.training, requests, fingerprints),
            holdout=used(plan.holdout, requests, fingerprints),
            warm_started=warm_started,
            champion=serving,
            champion_weight=policy.weight if policy and serving else 0.0,
            lookahead=lookahead,
            features=self._settings.features,
            environment=current_environment(),
            adapter_sha256=sha256,
            publish=judged.verdict.publish,
            turbo_score=scores[0],
            champion_score=scores[1],
            challenger_score=judged.challenger.total,
        )
        write_manifest(self._file(update).with_name(MANIFEST), manifest)
        return UpdateReport(
            plan=plan,
            publish=judged.verdict.publish,
            reason=judged.verdict.reason,
            turbo=scores[0],
            champion=scores[1],
            challenger=judged.challenger.total,
            champion_version=serving.version if serving else 0,
            gain_estimate=judged.verdict.over_serving.estimate,
            gain_lower=judged.verdict.over_serving.lower,
            gain_upper=judged.verdict.over_serving.upper,
            losses=trained.losses,
            steps=len(trained.losses),
            training_seconds=trained.seconds,
            evaluation_seconds=time.monotonic() - began,
            evaluated_at=self._clock(),
            adapter_sha256=sha256,
            peak_bytes=trained.peak_bytes,
        )

    def _tell(
        self,
        plan: UpdatePlan,
        judged: Judgement,
        champion: dict[str, Tensor] | None,
        policy: PolicyDecided | None,
        fingerprints: Fingerprints,
        at: Callable[[str], None],
        requests: Mapping[int, StoredRequest],
    ) -> None:
        """Send how every arm did on the hold-out, and on what is new to training and was never held out."""
        lookahead = max(1, self._settings.lookahead)
        former = self._erased.latest.get(plan.tenant) if self._erased is not None else None
        generation = former.generation + 1 if former else 0
        known = {
            number
            for update in self._ledger.updates(plan.tenant)
            if update.report
            for number in update.plan.holdout
        }
        fresh = [number for number in plan.fresh if number not in known]
        sequences = [fingerprints.load(number) for number in fresh]
        holdout: dict[tuple[Arm, int], Scored] = {(Arm.TURBO, 0): judged.turbo}
        training = {
            (Arm.TURBO, 0): score(
                self._drafter.head, None, sequences, lookahead=lookahead, weight=1.0,
                between=lambda: at("evaluating"),
            )
        }  # fmt: skip
        if judged.champion is not None and policy is not None and policy.champion is not None:
            serving = (Arm.ADAPTER, policy.champion.version)
            holdout[serving] = judged.champion
            training[serving] = score(
                self._drafter.head, champion, sequences, lookahead=lookahead, weight=policy.weight,
                between=lambda: at("evaluating"),
            )  # fmt: skip
        holdout[Arm.ADAPTER, plan.version] = judged.challenger
        for numbers, scored in ((plan.holdout, holdout), (fresh, training)):
            told = [walked(requests[number].request_id, fingerprints.load(number)) for number in numbers]
            self._scores.send(plan, told, scored, lookahead=lookahead, generation=generation)

    def _finish(self, update: Update) -> Update:
        assert update.report is not None
        run_id = update.run_id or self._record(update)
        state = UpdateState.REFUSED
        if update.report.publish:
            self._publisher.publish(update.report, self._file(update), run_id)
            state = UpdateState.PUBLISHED
        update = self._ledger.advance_update(update, state, run_id=run_id)
        if run_id:
            self._clean(update)
        return update

    def _record(self, update: Update) -> str:
        """Run id, empty while MLflow is away: a witness must not stop the loop."""
        try:
            return self._tracker.record(update, self._file(update).parent)
        except TrackingError as error:
            _log.warning("update not recorded yet", tenant=update.plan.tenant, error=str(error))
            return ""

    def _clean(self, update: Update) -> None:
        self._checkpoint(update).unlink(missing_ok=True)
        shutil.rmtree(self._file(update).parent, ignore_errors=True)

    def _checkpoint(self, update: Update) -> Path:
        return self._directory / f"{update.update_id}.checkpoint"

    def _file(self, update: Update) -> Path:
        return self._directory / str(update.update_id) / "adapter.safetensors"
