"""Turns the steps of one request into trace records.

A recorder sees each engine step of its request once: the drafts that were verified, how many were accepted,
the tokens that came out, and (for sampled requests) the feature rows of the positions whose tokens are final.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final

from adaptive.contracts import Arm, SamplingSummary, TraceRecord, VerifyStep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from adaptive.engine.request import RequestPlan

STEPS_PER_RECORD: Final = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprints:
    """What the traces were made with."""

    target_sha256: str
    turbo_sha256: str
    tokenizer_sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class FeatureRows:
    """Feature rows of consecutive positions, kept until the record is published."""

    start: int
    features: torch.Tensor
    """[rows, layers * hidden]."""
    last_hidden: torch.Tensor
    """[rows, hidden]."""


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """A finished record and the feature rows that belong to it, in position order (none: not sampled)."""

    record: TraceRecord
    rows: tuple[FeatureRows, ...]


class RequestRecorder:
    """Collects one request's verify steps and features into segments."""

    def __init__(
        self,
        plan: RequestPlan,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingSummary,
        fingerprints: Fingerprints,
        is_stop: Callable[[int], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._request_id = request_id
        self._prompt_ids = list(prompt_ids)
        self._sampling = sampling
        self._fingerprints = fingerprints
        self._is_stop = is_stop
        self._clock = clock
        self._segment = 0
        self._output_start = 0
        self._output_ids: list[int] = []
        self._steps: list[VerifyStep] = []
        self._rows: list[FeatureRows] = []
        self._rows_end: int | None = None
        self.row_bytes = 0
        """Of the feature rows held."""
        self._stopped = False

    def withdraw_share(self) -> None:
        """State in the records still to come that they may not enter a shared turbo."""
        self._plan = dataclasses.replace(self._plan, share=False)

    def step(
        self,
        arm: Arm,
        version: int,
        drafted: Sequence[int],
        emitted: Sequence[int],
        confidences: Sequence[float],
    ) -> None:
        """Note one step that emitted tokens; `drafted` may be empty (no speculation in this step)."""
        if drafted:
            self._steps.append(
                VerifyStep(
                    arm=arm,
                    version=version,
                    output_offset=len(self._output_ids),
                    drafted=list(drafted),
                    accepted=max(len(emitted) - 1, 0),
                    confidences=list(confidences[: len(drafted)]),
                )
            )
        limit = self._sampling.max_tokens
        for token in emitted:
            # The engine core cuts what follows a stop token or the length limit; the worker sees it uncut.
            if self._stopped or (limit is not None and self.output_length >= limit):
                break
            self._output_ids.append(token)
            self._stopped = self._is_stop(token)

    def rows(self, rows: FeatureRows) -> None:
        """Keep feature rows; rows already kept (recomputed after a preemption) are dropped."""
        end = rows.start + rows.features.shape[0]
        if self._rows_end is not None and rows.start != self._rows_end:
            skip = self._rows_end - rows.start
            if not 0 < skip < end - rows.start:
                return
            rows = FeatureRows(self._rows_end, rows.features[skip:], rows.last_hidden[skip:])
        self._rows.append(rows)
        self._rows_end = end
        self.row_bytes += rows.features.nbytes + rows.last_hidden.nbytes

    def forget_rows(self) -> None:
        """Let go of the rows held; give no more."""
        self._rows = []
        self.row_bytes = 0

    @property
    def output_length(self) -> int:
        """Output tokens so far, earlier segments included."""
        return self._output_start + len(self._output_ids)

    @property
    def full(self) -> bool:
        """Whether the segment holds as many verify steps as a record may."""
        return len(self._steps) >= STEPS_PER_RECORD

    def cut(self, *, finished: bool) -> Segment:
        """Close the segment and start the next one."""
        record = TraceRecord(
            trace_id=f"{self._request_id}:{self._segment}",
            tenant=self._plan.tenant,
            request_id=self._request_id,
            segment=self._segment,
            created_at=self._clock(),
            target_sha256=self._fingerprints.target_sha256,
            turbo_sha256=self._fingerprints.turbo_sha256,
            tokenizer_sha256=self._fingerprints.tokenizer_sha256,
            prompt_ids=self._prompt_ids if self._segment == 0 else [],
            prompt_length=len(self._prompt_ids),
            output_start=self._output_start,
            output_ids=self._output_ids,
            steps=self._steps,
            sampling=self._sampling,
            finished=finished,
            share=self._plan.share,
            generation=self._plan.generation,
        )
        rows = tuple(self._rows)
        self._segment += 1
        self._output_start += len(self._output_ids)
        self._output_ids, self._steps, self._rows = [], [], []
        self.row_bytes = 0
        return Segment(record, rows)
