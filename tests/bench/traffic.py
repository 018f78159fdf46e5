"""Made-up traces of the shape that requests leave behind, for benchmarks of the trace path."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import msgspec

from adaptive.contracts import Arm, SamplingSummary, TenantChanged, TenantState, TraceRecord, VerifyStep

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = "1" * 64
STEPS = 40
DRAFTS = 4


def verify_steps(draw: random.Random, count: int = STEPS) -> tuple[list[VerifyStep], list[int]]:
    """Verify steps and the tokens they put out: few tokens often and many rarely, as in text."""
    steps: list[VerifyStep] = []
    output: list[int] = []
    for _ in range(count):
        drafted = [min(49_151, int(draw.paretovariate(0.6)) + 20) for _ in range(DRAFTS)]
        accepted = draw.choice((0, 1, 2, 3, 4))
        # A drafter's confidences are bfloat16.
        confidences = [round(draw.gauss(2, 3) * 16) / 16 for _ in range(DRAFTS)]
        steps.append(VerifyStep(Arm.ADAPTER, 3, len(output), drafted, accepted, confidences))
        output += [*drafted[:accepted], min(49_151, int(draw.paretovariate(0.6)) + 20)]
    return steps, output


def record(number: int, tenant: str, draw: random.Random, *, finished: bool = True) -> TraceRecord:
    """The first segment of a request of 100 prompt tokens."""
    steps, output = verify_steps(draw)
    return TraceRecord(
        trace_id=f"{tenant}-{number}:0",
        tenant=tenant,
        request_id=f"{tenant}-{number}",
        segment=0,
        created_at=float(number),
        target_sha256=TARGET,
        turbo_sha256="2" * 64,
        tokenizer_sha256="3" * 64,
        prompt_ids=[min(49_151, int(draw.paretovariate(0.6)) + 20) for _ in range(100)],
        prompt_length=100,
        output_start=0,
        output_ids=output,
        steps=steps,
        sampling=SamplingSummary(temperature=0.7, max_tokens=256),
        finished=finished,
    )


def records(
    count: int, tenants: int, *, seed: int = 0, first: int = 0, finished: bool = True
) -> Iterator[TraceRecord]:
    """Traces of several tenants in turn: a few hundred different ones under ever new ids."""
    draw = random.Random(seed)  # noqa: S311  # reproducible on purpose
    models = [record(0, "t", draw, finished=finished) for _ in range(min(count, 300))]
    for number, model in zip(range(first, first + count), itertools.cycle(models), strict=False):
        tenant = f"tenant-{number % tenants}"
        yield msgspec.structs.replace(
            model, trace_id=f"{tenant}-{number}:0", tenant=tenant, request_id=f"{tenant}-{number}"
        )


def account(tenant: str) -> TenantChanged:
    """An account that may be learned from."""
    return TenantChanged(
        tenant=tenant,
        revision=1,
        state=TenantState.ACTIVE,
        key_hashes=[],
        learn=True,
        share=False,
        freeze=False,
        changed_at=0.0,
    )
