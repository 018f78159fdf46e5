"""From steps to trace records."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptive.contracts import Arm, SamplingSummary
from adaptive.engine.recorder import STEPS_PER_RECORD, FeatureRows, Fingerprints, RequestRecorder, Segment
from adaptive.engine.request import RequestPlan

EOS = 2
PROMPT = [11, 12, 13]


def recorder(max_tokens: int | None = None, *, plan: RequestPlan | None = None) -> RequestRecorder:
    """A recorder whose clock counts up from 100."""
    ticks = itertools.count(100)
    return RequestRecorder(
        plan or RequestPlan(tenant="acme", arm=Arm.ADAPTER, learn=True),
        "request-1",
        PROMPT,
        SamplingSummary(temperature=0.7, max_tokens=max_tokens),
        Fingerprints("target", "turbo", "tokenizer"),
        lambda token: token == EOS,
        clock=lambda: float(next(ticks)),
    )


def rows(start: int, count: int) -> FeatureRows:
    """Feature rows whose values are their positions."""
    positions = torch.arange(start, start + count, dtype=torch.float32)[:, None]
    return FeatureRows(start, positions.repeat(1, 6), positions.repeat(1, 2))


def positions(segment: Segment) -> list[float]:
    """Positions of a segment's rows, read from their values."""
    for part in segment.rows:
        assert part.features.shape[0] == part.last_hidden.shape[0]
        assert part.features[0, 0] == part.last_hidden[0, 0] == part.start
    return [value for part in segment.rows for value in part.features[:, 0].tolist()]


def test_a_record_says_everything_about_its_request() -> None:
    """Ids, fingerprints, prompt, sampling, consent, outputs and steps of one short request."""
    plan = RequestPlan(tenant="acme", arm=Arm.ADAPTER, learn=True, share=True)
    made = recorder(max_tokens=50, plan=plan)
    made.step(Arm.ADAPTER, 0, [], [20], [])
    made.step(Arm.ADAPTER, 7, [21, 22, 23], [21, 22, 30], [1.5, 0.5, -0.5])
    made.step(Arm.TURBO, 0, [31], [40], [2.0, 9.0])
    record = made.cut(finished=True).record
    assert (record.trace_id, record.tenant, record.request_id, record.segment) == (
        "request-1:0",
        "acme",
        "request-1",
        0,
    )
    assert record.created_at == 100.0
    assert (record.target_sha256, record.turbo_sha256, record.tokenizer_sha256) == (
        "target",
        "turbo",
        "tokenizer",
    )
    assert (record.prompt_ids, record.prompt_length) == (PROMPT, 3)
    assert (record.output_start, record.output_ids) == (0, [20, 21, 22, 30, 40])
    assert record.sampling == SamplingSummary(temperature=0.7, max_tokens=50)
    assert (record.finished, record.share, record.features) == (True, True, None)
    first, second = record.steps
    assert (first.arm, first.version, first.output_offset) == (Arm.ADAPTER, 7, 1)
    assert (first.drafted, first.accepted, first.confidences) == ([21, 22, 23], 2, [1.5, 0.5, -0.5])
    assert (second.arm, second.version, second.output_offset) == (Arm.TURBO, 0, 4)
    assert (second.drafted, second.accepted, second.confidences) == ([31], 0, [2.0])


def test_steps_without_drafts_emit_but_are_no_verify_steps() -> None:
    """Prefill and the off arm add tokens, not verify steps."""
    made = recorder()
    for token in (20, 21, 22):
        made.step(Arm.OFF, 0, [], [token], [])
    record = made.cut(finished=True).record
    assert (record.output_ids, record.steps) == ([20, 21, 22], [])


def test_nothing_is_kept_behind_a_stop_token() -> None:
    """The engine core cuts there too; the verify step keeps what was drafted and accepted."""
    made = recorder()
    made.step(Arm.TURBO, 0, [20, EOS, 22], [20, EOS, 22, 23], [])
    record = made.cut(finished=True).record
    assert record.output_ids == [20, EOS]
    assert record.steps[0].accepted == 3


def test_a_stop_token_ends_later_steps_too() -> None:
    """A step in flight when the request stopped adds no output."""
    made = recorder()
    made.step(Arm.TURBO, 0, [], [EOS], [])
    made.step(Arm.TURBO, 0, [], [33], [])
    assert made.cut(finished=True).record.output_ids == [EOS]


def test_max_tokens_cuts_the_last_step() -> None:
    """The length limit counts over all segments."""
    made = recorder(max_tokens=4)
    made.step(Arm.TURBO, 0, [20, 21], [20, 21, 22], [])
    assert made.cut(finished=False).record.output_ids == [20, 21, 22]
    made.step(Arm.TURBO, 0, [23, 24], [23, 24, 25], [])
    record = made.cut(finished=True).record
    assert (record.output_start, record.output_ids, made.output_length) == (3, [23], 4)


def test_a_segment_is_full_after_256_verify_steps() -> None:
    """Steps without drafts do not count towards the limit of a record."""
    made = recorder()
    made.step(Arm.TURBO, 0, [], [20], [])
    for number in range(STEPS_PER_RECORD):
        assert not made.full
        made.step(Arm.TURBO, 0, [1], [100 + number], [0.0])
    assert STEPS_PER_RECORD == 256
    assert made.full
    segment = made.cut(finished=False)
    assert len(segment.record.steps) == 256
    assert not segment.record.finished
    assert not made.full


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=30))
def test_segments_concatenate_to_the_whole_request(steps: list[tuple[int, int, bool]]) -> None:
    """Outputs chain by output_start, offsets point at a step's first token, only segment 0 has the prompt."""
    made = recorder()
    expected: list[int] = []
    segments = []
    token = 100
    for drafts, accepted, cut in steps:
        emitted = list(range(token, token + min(drafts, accepted) + 1))
        token += len(emitted)
        made.step(Arm.TURBO, 0, [7] * drafts, emitted, [0.0] * drafts)
        expected += emitted
        if cut:
            segments.append(made.cut(finished=False).record)
    segments.append(made.cut(finished=True).record)
    assert [record.segment for record in segments] == list(range(len(segments)))
    assert len({record.trace_id for record in segments}) == len(segments)
    assert [bool(record.prompt_ids) for record in segments] == [n == 0 for n in range(len(segments))]
    assert {record.prompt_length for record in segments} == {3}
    output: list[int] = []
    for record in segments:
        assert record.output_start == len(output)
        output += record.output_ids
        for step in record.steps:
            emitted = record.output_ids[step.output_offset : step.output_offset + step.accepted + 1]
            assert len(emitted) == step.accepted + 1
            assert emitted == list(range(emitted[0], emitted[0] + len(emitted)))
    assert output == expected
    assert sum(len(record.steps) for record in segments) == sum(1 for drafts, _, _ in steps if drafts)


def test_rows_recomputed_after_a_preemption_are_dropped() -> None:
    """A resumed request runs its prefix again; each position is kept once, in order."""
    made = recorder()
    made.rows(rows(4, 3))
    made.rows(rows(7, 2))
    for again in (rows(0, 4), rows(4, 4), rows(8, 1)):
        made.rows(again)
    made.rows(rows(6, 5))
    assert positions(made.cut(finished=True)) == [4, 5, 6, 7, 8, 9, 10]


def test_rows_behind_a_gap_are_dropped() -> None:
    """Row i must belong to position feature_start + i: what would break that is left out."""
    made = recorder()
    made.rows(rows(0, 3))
    made.rows(rows(5, 2))
    assert positions(made.cut(finished=True)) == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5), st.booleans()), max_size=12))
def test_rows_are_contiguous_over_segments(chunks: list[tuple[int, int, bool]]) -> None:
    """Whatever is offered, the kept rows of all segments are consecutive positions without repeats."""
    made = recorder()
    kept: list[float] = []
    for start, count, cut in chunks:
        made.rows(rows(start, count))
        if cut:
            kept += positions(made.cut(finished=False))
    kept += positions(made.cut(finished=True))
    first = chunks[0][0] if chunks else 0
    assert kept == list(range(first, first + len(kept)))
    assert bool(kept) == bool(chunks)


def test_segments_do_not_share_their_lists() -> None:
    """A published record never changes under the publisher's thread."""
    made = recorder()
    made.step(Arm.TURBO, 0, [1], [20], [0.0])
    made.rows(rows(0, 1))
    first = made.cut(finished=False)
    made.step(Arm.TURBO, 0, [1], [21], [0.0])
    made.rows(rows(1, 1))
    assert (first.record.output_ids, len(first.record.steps), positions(first)) == ([20], 1, [0.0])


def test_row_bytes_are_those_held() -> None:
    """What a recorder holds of features is known, and gone when they are handed over or forgotten."""
    made = recorder()
    assert made.row_bytes == 0
    made.rows(rows(0, 3))
    made.rows(rows(1, 5))
    assert made.row_bytes == 6 * 4 * (6 + 2)
    assert len(positions(made.cut(finished=False))) == 6
    assert made.row_bytes == 0
    made.rows(rows(6, 2))
    made.forget_rows()
    assert (made.row_bytes, made.cut(finished=True).rows) == (0, ())
