"""A tenant's learner without log, Ray and MLflow; selection, training and gate are the service's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from safetensors.torch import load_file, save_file

from adaptive.settings import Settings
from adaptive.speculator.adapter import Adapter, AdapterConfig
from adaptive.speculator.evaluation import walk
from learners.judging import judge
from learners.records import StoredRequest
from learners.selection import batch_tokens, evictions, split, token_steps, update_seed
from learners.training import Trainer
from tests.bench import one_update
from tests.bench.material import LOOKAHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from adaptive.speculator.sequences import TracedSequence
    from learners.drafter import Drafter


class Step(msgspec.Struct, frozen=True):
    """One update and what it changed."""

    requests: int
    """Arrived so far."""
    training_tokens: int
    token_steps: int
    seconds: float
    peak_bytes: int
    published: bool
    gain: float
    """The gate's estimate over what served."""
    gain_lower: float
    turbo: float
    """Tau on the probe; so are the next two."""
    challenger: float
    serving: float
    """Of what serves after the verdict."""


class _State(msgspec.Struct):
    arrived: int = 0
    ready: list[StoredRequest] = []
    steps: list[Step] = []
    serving: bool = False
    judged: set[int] = set()
    """Hold-out requests that a challenger was judged by."""


class OnlineTenant:
    """Takes requests as they arrive and updates when told to; goes on from its directory.

    Args:
        name: Of the tenant.
        drafter: What it drafts with; a changed target needs another OnlineTenant on the same directory.
        load: Reads a request's sequence by number.
        directory: Keeps state and champion.
        token_steps: Most answer tokens processed by an update (None: as by default).
    """

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        load: Callable[[int], TracedSequence | None],
        directory: Path,
        token_steps: int | None = None,
    ) -> None:
        self._name: Final = name
        self._drafter: Final = drafter
        self._load: Final = load
        self._file: Final = directory / "state.json"
        self._champion_file: Final = directory / "champion.safetensors"
        self._checkpoint: Final = directory / "checkpoint"
        self._settings: Final = Settings()
        self._most: Final = token_steps or self._settings.update_token_steps
        directory.mkdir(parents=True, exist_ok=True)
        known = self._file.is_file()
        self._state = msgspec.json.decode(self._file.read_bytes(), type=_State) if known else _State()

    @property
    def arrived(self) -> int:
        """Requests taken so far."""
        return self._state.arrived

    @property
    def steps(self) -> list[Step]:
        """Updates so far."""
        return self._state.steps

    def drift(self, at: int, probe: Sequence[TracedSequence]) -> None:
        """Another target from request `at` on: the replay is dropped, what serves stays until an update."""
        self._state.ready = []
        self._state.arrived = at
        turbo, serving = self.tau(None, probe), self.tau(self.champion(), probe)
        self._state.steps.append(Step(at, 0, 0, 0.0, 0, False, 0.0, 0.0, turbo, serving, serving))  # noqa: FBT003  positional record
        self._save()

    def arrive(self, until: int) -> None:
        """Take requests up to number `until` (exclusive)."""
        for number in range(self._state.arrived, until):
            sequence = self._load(number)
            if sequence is not None:
                rows = len(sequence.token_ids)
                self._state.ready.append(
                    StoredRequest(
                        number=number,
                        tenant=self._name,
                        request_id=f"{self._name}-{number}",
                        rows=rows,
                        tokens=rows - sequence.answer_start,
                        digest="",
                        created_at=float(number),
                        partition=0,
                        first_offset=number,
                        last_offset=number,
                        trained=False,
                    )
                )
            gone = set(evictions(self._state.ready, self._settings.replay_tokens, self._settings.seed))
            self._state.ready = [one for one in self._state.ready if one.number not in gone]
        self._state.arrived = until
        self._save()

    def update(self, probe: Sequence[TracedSequence]) -> Step | None:
        """Train, judge, publish if the gate says so, and walk the probe; None where there is too little."""
        chosen = split(self._state.ready)
        if not chosen.enough:
            return None
        head, warm = self._drafter.head, self.champion()
        ordinal = len(self._state.steps) + 1
        tokens = sum(one.tokens for one in chosen.training)
        fresh = sum(one.tokens for one in chosen.fresh) if warm is not None else tokens
        budget = token_steps(fresh, tokens - fresh, self._most)
        plan = one_update.make_plan(
            self._drafter,
            (),
            tenant=self._name,
            ordinal=ordinal,
            version=ordinal,
            seed=update_seed(self._settings.seed, self._name, ordinal),
            training=tuple(one.number for one in chosen.training),
            fresh=tuple(one.number for one in chosen.fresh),
            holdout=tuple(one.number for one in chosen.holdout),
            judged=tuple(one.number for one in chosen.holdout if one.number in self._state.judged),
            tokens=tokens,
            token_steps=budget,
            batch_tokens=batch_tokens(budget),
        )
        trained = Trainer(self._drafter).train(
            plan,
            {one.number: one.tokens for one in chosen.training},
            load=self._must_load,
            warm_start=warm,
            checkpoint=self._checkpoint,
            on_step=lambda *_: None,
        )
        judged = judge(
            head,
            trained.tensors,
            warm,
            [self._must_load(one.number) for one in chosen.holdout],
            champion_weight=1.0,
            lookahead=LOOKAHEAD,
            fresh=plan.fresh_evidence,
            between=lambda: None,
        )
        self._state.judged |= set(plan.holdout)
        publish = judged.verdict.publish
        challenger = self.tau(trained.tensors, probe)
        step = Step(
            requests=self._state.arrived,
            training_tokens=tokens,
            token_steps=budget,
            seconds=trained.seconds,
            peak_bytes=trained.peak_bytes,
            published=publish,
            gain=judged.verdict.over_serving.estimate,
            gain_lower=judged.verdict.over_serving.lower,
            turbo=self.tau(None, probe),
            challenger=challenger,
            serving=challenger if publish else self.tau(warm, probe),
        )
        if publish:
            save_file(trained.tensors, self._champion_file)
        self._state.serving = self._state.serving or publish
        taken = set(plan.training)
        self._state.ready = [
            msgspec.structs.replace(one, trained=one.trained or one.number in taken)
            for one in self._state.ready
        ]
        self._state.steps.append(step)
        self._checkpoint.unlink(missing_ok=True)
        self._save()
        return step

    def champion(self) -> dict[str, Tensor] | None:
        """Tensors of what serves; None: turbo."""
        return load_file(self._champion_file) if self._state.serving else None

    def tau(self, tensors: dict[str, Tensor] | None, sequences: Sequence[TracedSequence]) -> float:
        """Walked acceptance length."""
        adapter = None
        if tensors is not None:
            adapter = Adapter(AdapterConfig(tensors["q_proj.A"].shape[0]), self._drafter.head.config)
            adapter.load_tensors(tensors)
        return walk(self._drafter.head, adapter, sequences, LOOKAHEAD).tau

    def _must_load(self, number: int) -> TracedSequence:
        sequence = self._load(number)
        assert sequence is not None, "only requests that could be loaded are ready"
        return sequence

    def _save(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(self._state))
        partial.replace(self._file)
