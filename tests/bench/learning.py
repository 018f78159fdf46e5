"""Benchmark `learning`: walked tau of turbo and of what serves while a tenant's requests arrive.

Each workload's T = 0.7 traffic goes through the learner's own selection, trainer and gate; tau is walked over
the greedy probe, whose prompts are not in the traffic. `--drift MODEL` replaces the target half-way by MODEL,
a fine-tuned copy (tests/bench/tuned.py): traffic and probe are then MODEL's, and the replay starts anew.
Everything is kept below `.adaptive/learning`: a run that was interrupted goes on, and more `--requests` or
`--workloads` extend it. Make the text first: `python -m tests.bench.text`.
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from tests.bench import figure, result, text
from tests.bench.material import LOOKAHEAD, Material
from tests.bench.online import OnlineTenant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adaptive.speculator.sequences import TracedSequence
    from tests.bench.online import Step

MARKS: Final = (500, 1000, 2000, 5000)
FINAL_SHARE: Final = 0.8


def main(arguments: Sequence[str]) -> Path:
    """Run or go on with the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="learning", description=__doc__)
    parser.add_argument("--workloads", default=",".join(text.FAR + text.NEAR))
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--every", type=int, default=125, help="requests between two updates")
    parser.add_argument("--first", type=int, default=60, help="requests before the first update; it doubles")
    parser.add_argument("--token-steps", type=int, help="answer tokens of an update (default: the setting)")
    parser.add_argument("--probe", type=int, default=48, help="requests walked after every update")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--drift", type=str, help="model directory that replaces the target half-way")
    parser.add_argument("--name", default="learning", help="of the run: its state, JSON and figure")
    parser.add_argument("--report-only", action="store_true", help="write what there is")
    parser.add_argument("--quick", action="store_true", help="64 requests, for a check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.requests, options.every, options.first = 64, 32, 32
        options.token_steps, options.probe, options.name = 1000, 4, "learning-quick"
    torch.set_num_threads(options.threads)
    curves: dict[str, list[Step]] = {}
    for workload in options.workloads.split(","):
        curve = _run(workload, options)
        if curve:
            curves[workload] = curve
    figure.draw(
        result.DIRECTORY / f"{options.name}.svg",
        curves,
        vertical=options.requests // 2 if options.drift else None,
    )
    command = result.command("learning", [a for a in arguments if a != "--report-only"])
    return result.write(options.name, command, _variants(curves), _ratios(curves), _notes(curves, options))


def _run(workload: str, options: argparse.Namespace) -> list[Step]:
    """Bring a workload's curve to the asked number of requests."""
    state = text.DIRECTORY.parent / "runs" / options.name / workload
    drift_at = options.requests // 2 if options.drift else options.requests
    points = update_points(options.first, options.every, drift_at)
    target = text.target_directory(workload)
    steps = _phase(workload, options, state, target, points, 0)
    if options.drift:
        after = [drift_at + point for point in update_points(options.first, options.every, drift_at)]
        steps = _phase(workload, options, state, result.ROOT / options.drift, after, drift_at)
    return steps


def _phase(
    workload: str, options: argparse.Namespace, state: Path, target: Path, points: list[int], begin: int
) -> list[Step]:
    """Updates at `points` with one target; the requests before `begin` were another's."""
    material = Material(target)

    def load(number: int) -> TracedSequence | None:
        return material.sequence(workload, "traffic", number - begin, items(number - begin))

    @functools.cache
    def items_all() -> list[text.Text]:
        return text.read(workload, "traffic", target.name)

    def items(number: int) -> text.Text:
        found = items_all()
        if number >= len(found):
            raise SystemExit(f"{workload}: {len(found)} requests were generated, more are needed: run text")
        return found[number]

    tenant = OnlineTenant(workload, material.drafter, load, state, options.token_steps)
    if options.report_only:
        return tenant.steps
    probe = material.sequences(workload, "probe", 0, options.probe)
    if begin and tenant.steps[-1].token_steps and tenant.arrived <= begin:
        tenant.drift(begin, probe)
    for point in points:
        if point < tenant.arrived or any(step.requests == point for step in tenant.steps):
            continue  # done before this run
        tenant.arrive(point)
        step = tenant.update(probe)
        if step is not None:
            print(  # noqa: T201  progress
                f"{workload} {point}: turbo {step.turbo:.3f} challenger {step.challenger:.3f} "
                f"serving {step.serving:.3f} gain {step.gain:+.3f} published {step.published} "
                f"{step.token_steps} tokens in {step.seconds:.0f} s",
                flush=True,
            )
    return tenant.steps


def update_points(first: int, every: int, last: int) -> list[int]:
    """Request counts at which to update: doubling from `first`, then every `every` (at least)."""
    points = []
    at = first
    while at < last:
        points.append(at)
        at += min(at, every)
    return [*points, last]


def tau_at(curve: Sequence[Step], requests: int) -> float | None:
    """Tau of what served after so many requests; None beyond the run."""
    if not curve or requests > curve[-1].requests:
        return None
    served = [step.serving for step in curve if step.requests <= requests]
    return served[-1] if served else curve[0].turbo


def requests_to_share(curve: Sequence[Step], share: float = FINAL_SHARE) -> int | None:
    """First update from which on tau keeps `share` of the last gain over turbo; None without a gain."""
    gain = curve[-1].serving - curve[-1].turbo
    if gain <= 0:
        return None
    reached = None
    for step in curve:
        if step.serving - step.turbo >= share * gain:
            reached = step.requests if reached is None else reached
        else:
            reached = None
    return reached


def _variants(curves: dict[str, list[Step]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for workload, curve in curves.items():
        updates = [step for step in curve if step.token_steps]
        taus = {"tau of turbo": curve[-1].turbo}
        few = curve[-1].requests < MARKS[1]
        for mark in sorted({*MARKS, *(step.requests for step in (curve if few else curve[-1:]))}):
            tau = tau_at(curve, mark)
            if tau is not None:
                taus[f"tau after {mark} requests"] = tau
        reached = requests_to_share(curve)
        if reached is not None:
            taus["requests to 80 % of the last gain"] = reached
        taus |= _recovery(curve)
        found[workload] = {name: result.spread([value]) for name, value in taus.items()} | {
            "seconds per update": result.spread([step.seconds for step in updates]),
            "answer tokens trained per second": result.spread(
                [step.token_steps / step.seconds for step in updates]
            ),
            "peak memory in GiB": result.spread([step.peak_bytes / (1 << 30) for step in updates]),
            "updates published": result.spread([sum(step.published for step in updates)]),
            "updates refused": result.spread([sum(not step.published for step in updates)]),
        }
    return found


def _recovery(curve: Sequence[Step]) -> dict[str, float]:
    """What a change of the target cost, and how long; empty without one (`OnlineTenant.drift` marks it)."""
    changes = [index for index, step in enumerate(curve) if not step.token_steps]
    if not changes or not changes[0]:
        return {}
    at = changes[0]
    before, change, after = curve[at - 1].serving, curve[at], curve[at + 1 :]
    found = {"tau before the change": before, "tau right after the change": change.serving}
    back = [step.requests for step in after if step.serving - 1 >= FINAL_SHARE * (before - 1)]
    if change.serving - 1 >= FINAL_SHARE * (before - 1):
        back = [change.requests]
    if back:
        found["requests to 80 % of the acceptance before"] = back[0] - change.requests
    return found


def _ratios(curves: dict[str, list[Step]]) -> dict[str, Any]:
    return {
        f"tau of what serves over turbo, {workload}, after {curve[-1].requests} requests": result.ratios(
            [curve[-1].serving], [curve[-1].turbo]
        )
        for workload, curve in curves.items()
    }


def _notes(curves: dict[str, list[Step]], options: argparse.Namespace) -> str:
    sizes = ", ".join(f"{name} {curve[-1].requests}" for name, curve in curves.items())
    drift = " The target was replaced half-way." if options.drift else ""
    return (
        f"Really run: {sizes} requests (asked for: {options.requests} each), updates at a doubling number of "
        f"requests up to {options.every}, then every {options.every}; at most "
        f"{options.token_steps or 60_000} answer tokens an update; probe of at most {options.probe} greedy "
        f"requests, {LOOKAHEAD} drafts; {options.threads} thread, bfloat16.{drift} "
        f"Figure: {options.name}.svg."
    )
