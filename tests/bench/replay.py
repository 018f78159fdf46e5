"""Benchmark `replay`: what a tenant's drafter forgets when its traffic moves from A to B and back to A.

Real answers of the target to two workloads (recorded, see deploy/models/README.md) arrive as one tenant's
traffic: A, then B, then more of A. Every few requests a challenger is trained and judged by the learner's own
split, eviction, schedule, trainer and gate, and serves if it passes. What the replay keeps is the only
difference between the variants: newest and reservoir (as the learner does), newest only, or nothing but the
requests that are new. Tau is walked on probe requests of A and B, which no variant ever trains on.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from adaptive.settings import Settings
from adaptive.speculator.sequences import TracedSequence
from learners.drafter import Drafter, Recomputer, faster_precision, load_drafter
from learners.evaluation import score
from learners.features import digest_of
from learners.judging import judge
from learners.paths import drafter_directories
from learners.records import StoredRequest, UpdatePlan
from learners.selection import batch_tokens, evictions, split, token_steps, update_seed
from learners.training import Trainer
from tests.bench import recordings, result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    Keep = Callable[[Sequence[StoredRequest]], Sequence[StoredRequest]]

TEMPERATURE: Final = 0.7
LOOKAHEAD: Final = 4
RECOVERED: Final = 0.98
"""Share of the tau at the end of A from which the return to A counts as recovered."""


@dataclasses.dataclass
class Tenant:
    """One variant: its replay, its champion, and what was measured after each update."""

    keep: Keep
    stored: list[StoredRequest] = dataclasses.field(default_factory=list)
    champion: dict[str, Tensor] | None = None
    ordinal: int = 0
    judged: set[int] = dataclasses.field(default_factory=set)
    published: int = 0
    taus: list[dict[str, float]] = dataclasses.field(default_factory=list)


class Stage:
    """Drafter, sequences and updates."""

    def __init__(self, drafter: Drafter, options: argparse.Namespace, scratch: Path) -> None:
        self._drafter, self._options, self._scratch = drafter, options, scratch
        self._recompute = Recomputer(drafter)
        self._trainer = Trainer(drafter)
        self._settings = Settings()
        self.sequences: dict[int, TracedSequence] = {}

    def sequence(self, request: recordings.Recording) -> TracedSequence:
        """A recorded request with the target's features."""
        token_ids = torch.tensor([*request.prompt, *request.answer])
        features, last_hidden = self._recompute(token_ids)
        return TracedSequence(token_ids, len(request.prompt), 0, features, last_hidden)

    def arrive(self, number: int, sequence: TracedSequence) -> StoredRequest:
        """Number a request of the stream."""
        self.sequences[number] = sequence
        rows = len(sequence.token_ids)
        return StoredRequest(
            number=number, tenant="tenant", request_id=f"{number}", rows=rows,
            tokens=rows - sequence.answer_start, digest=digest_of(sequence), created_at=float(number),
            partition=0, first_offset=number, last_offset=number, trained=False,
        )  # fmt: skip

    def update(self, tenant: Tenant, name: str) -> None:
        """Evict, train and judge as the learner does; a challenger that passes serves."""
        tenant.stored = list(tenant.keep(tenant.stored))
        chosen = split(tenant.stored)
        if not chosen.enough:
            return
        tenant.ordinal += 1
        plan = self._plan(tenant, chosen.training, chosen.fresh, chosen.holdout)
        tokens = {request.number: request.tokens for request in chosen.training}
        trained = self._trainer.train(
            plan,
            tokens,
            load=self.sequences.__getitem__,
            warm_start=tenant.champion,
            checkpoint=self._scratch / f"{name}-{tenant.ordinal}".replace(" ", "-"),
            on_step=lambda *_: None,
        )
        trained_on = set(plan.training)
        tenant.stored = [
            msgspec.structs.replace(one, trained=one.trained or one.number in trained_on)
            for one in tenant.stored
        ]
        verdict = judge(
            self._drafter.head,
            trained.tensors,
            tenant.champion,
            [self.sequences[number] for number in plan.holdout],
            champion_weight=1.0,
            lookahead=LOOKAHEAD,
            fresh=plan.fresh_evidence,
            between=lambda: None,
        ).verdict
        tenant.judged |= set(plan.holdout)
        if verdict.publish:
            tenant.champion = trained.tensors
            tenant.published += 1

    def tau(self, champion: Mapping[str, Tensor] | None, probe: Sequence[TracedSequence]) -> float:
        """Walked acceptance length of what serves."""
        return score(
            self._drafter.head, champion, probe, lookahead=LOOKAHEAD, weight=1.0, between=lambda: None
        ).total.tau

    def _plan(
        self,
        tenant: Tenant,
        training: Sequence[StoredRequest],
        fresh: Sequence[StoredRequest],
        holdout: Sequence[StoredRequest],
    ) -> UpdatePlan:
        settings, seed = self._settings, self._options.seed
        tokens = sum(request.tokens for request in training)
        new = sum(request.tokens for request in fresh) if tenant.champion else tokens
        budget = token_steps(new, tokens - new, self._options.token_steps)
        return UpdatePlan(
            tenant="tenant", ordinal=tenant.ordinal, version=tenant.ordinal,
            seed=update_seed(seed, "tenant", tenant.ordinal),
            training=tuple(one.number for one in training), fresh=tuple(one.number for one in fresh),
            holdout=tuple(one.number for one in holdout), warm_start=None, tokens=tokens,
            token_steps=budget, batch_tokens=batch_tokens(budget), learning_rate=settings.learning_rate,
            rank=settings.rank, unroll_depth=settings.unroll_depth, precision=self._drafter.precision,
            target_sha256=self._drafter.target_sha256, turbo_sha256=self._drafter.turbo_sha256,
            traces_until=0.0, first_offset={}, last_offset={},
            judged=tuple(one.number for one in holdout if one.number in tenant.judged),
        )  # fmt: skip


def variants(capacity: int, seed: int) -> dict[str, Tenant]:
    """What each variant keeps of at most `capacity` prompt and answer tokens."""

    def reservoir(stored: Sequence[StoredRequest]) -> list[StoredRequest]:
        gone = set(evictions(stored, capacity, seed))
        return [request for request in stored if request.number not in gone]

    def newest(stored: Sequence[StoredRequest]) -> list[StoredRequest]:
        kept, room = [], capacity
        for request in reversed(stored):
            room -= request.rows
            if room < 0:
                break
            kept.append(request)
        return kept[::-1]

    def nothing(stored: Sequence[StoredRequest]) -> list[StoredRequest]:
        return [request for request in stored if not request.trained]

    kinds = {"newest and reservoir": reservoir, "newest only": newest, "no replay": nothing}
    return {name: Tenant(keep) for name, keep in kinds.items()}


def one_round(stage: Stage, options: argparse.Namespace, turn: int) -> dict[str, dict[str, float]]:
    """Every variant through A, B and A; measures by variant."""
    traffic = {
        letter: recordings.read(workload, "traffic", TEMPERATURE)
        for letter, workload in (("A", options.first), ("B", options.second))
    }
    probes = {
        letter: [
            stage.sequence(request)
            for request in recordings.read(workload, "probe", TEMPERATURE)[: options.probes]
        ]
        for letter, workload in (("A", options.first), ("B", options.second))
    }
    count = options.requests
    stream = [("A", one) for one in traffic["A"][turn * 2 * count :][:count]]
    stream += [("B", one) for one in traffic["B"][turn * count :][:count]]
    stream += [("A", one) for one in traffic["A"][turn * 2 * count + count :][:count]]
    arrived = [stage.arrive(number, stage.sequence(one)) for number, (_, one) in enumerate(stream)]
    phase = sum(request.rows for request in arrived) / 3
    tenants = variants(int(phase * options.capacity), options.seed + turn)
    turbo = {letter: stage.tau(None, probe) for letter, probe in probes.items()}
    for end in range(options.every, len(arrived) + 1, options.every):
        for name, tenant in tenants.items():
            tenant.stored += arrived[end - options.every : end]
            stage.update(tenant, f"{turn} {name}")
            tenant.taus.append(
                {letter: stage.tau(tenant.champion, probe) for letter, probe in probes.items()}
            )
            print(  # noqa: T201  progress
                turn, end, stream[end - 1][0], name,
                {letter: round(tau, 3) for letter, tau in tenant.taus[-1].items()}, flush=True,
            )  # fmt: skip
    return {
        name: measures(tenant, turbo, count // options.every, options.every)
        for name, tenant in tenants.items()
    }


def measures(tenant: Tenant, turbo: Mapping[str, float], updates: int, every: int) -> dict[str, float]:
    """Figures of one variant, of `updates` updates per phase."""
    taus = tenant.taus
    learned, left, final = taus[updates - 1]["A"], taus[2 * updates - 1]["A"], taus[-1]["A"]
    back = [tau["A"] for tau in taus[2 * updates - 1 :]]
    recovered = next((i for i, tau in enumerate(back) if tau >= RECOVERED * learned), None)
    current = [tau["B" if updates <= i < 2 * updates else "A"] for i, tau in enumerate(taus)]
    floor = [turbo["B" if updates <= i < 2 * updates else "A"] for i in range(len(taus))]
    below = [tau < 0.98 * least for tau, least in zip(current, floor, strict=True)]
    return {
        "tau on A, turbo": turbo["A"],
        "tau on B, turbo": turbo["B"],
        "tau on A after A": learned,
        "tau on A after B": left,
        "tau on B after B": taus[2 * updates - 1]["B"],
        "tau on A after A again": final,
        "forgotten of the gain on A, %": 100 * (learned - left) / max(1e-9, learned - turbo["A"]),
        f"requests of A until {RECOVERED:.0%} of its tau is back": float(
            (len(back) if recovered is None else recovered) * every
        ),
        "gate periods in a row more than 2 % below turbo on the current traffic": float(longest(below)),
        "published": float(tenant.published),
    }


def longest(flags: Sequence[bool]) -> int:
    """Length of the longest run of true ones."""
    best = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        best = max(best, run)
    return best


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="each of other requests and another seed")
    parser.add_argument("--requests", type=int, default=72, help="of each phase")
    parser.add_argument("--every", type=int, default=24, help="requests between updates")
    parser.add_argument("--probes", type=int, default=24)
    parser.add_argument("--capacity", type=float, default=0.7, help="of the replay, in phases")
    parser.add_argument("--token-steps", type=int, default=6_000, help="most answer tokens of an update")
    parser.add_argument("--first", default="idioma", help="workload A")
    parser.add_argument("--second", default="format", help="workload B")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one round of few requests: does it run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.requests, options.probes = 1, 24, 4
        options.token_steps, options.capacity = 1000, 2.0
    torch.set_num_threads(1)
    drafter = load_drafter(*drafter_directories(Settings()), faster_precision())
    cells: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for turn in range(options.rounds):
            stage = Stage(drafter, options, Path(directory))
            for name, found in one_round(stage, options, turn).items():
                cells.setdefault(name, []).append(found)
    table: dict[str, Any] = {
        name: {measure: result.spread([cell[measure] for cell in rounds]) for measure in rounds[0]}
        for name, rounds in cells.items()
    }
    kept = cells["newest and reservoir"]
    ratios = {
        f"{measure}, newest and reservoir over {other}": result.ratios(
            [cell[measure] for cell in kept], [cell[measure] for cell in cells[other]]
        )
        for measure in ("tau on A after B", "tau on B after B", "tau on A after A again")
        for other in ("newest only", "no replay")
    }
    notes = (
        f"{str(__doc__).partition(': ')[2].strip()} A is {options.first}, B {options.second}; phases of "
        f"{options.requests} requests, an update every {options.every}, replay of {options.capacity} phases, "
        f"at most {options.token_steps} answer tokens per update, {options.rounds} rounds of other requests."
    )
    return result.write("replay", result.command("replay", arguments), table, ratios, notes)
