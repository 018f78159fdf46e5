"""Captured features are the target's own, of the right request, at the right positions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load
from vllm import SamplingParams

from adaptive.contracts import Arm, TraceRecord
from adaptive.engine.request import RequestPlan
from adaptive.speculator.target import compute_features, load_target
from collectors.store import TensorStore
from tests.integration.engine.harness import MAX_BATCHED_TOKENS
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from tests.integration.engine.harness import Engine

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def reference(target: Path) -> PreTrainedModel:
    """The target in plain transformers, float32."""
    return load_target(target)


def captured(engine: Engine, record: TraceRecord) -> dict[str, torch.Tensor]:
    """The feature tensors a record refers to, checksum verified."""
    assert record.features is not None
    tensors: dict[str, torch.Tensor] = load(
        TensorStore(engine.store_url).get(record.features.uri, record.features.sha256)
    )
    # Traces of one tenant share objects.
    rows = slice(record.features.first_row, record.features.first_row + record.features.rows)
    return {name: tensor[rows] for name, tensor in tensors.items()}


def largest_error(engine: Engine, reference: PreTrainedModel, record: TraceRecord) -> float:
    """Largest error of a row, features or last hidden state, relative to its largest absolute value."""
    found = captured(engine, record)
    assert record.features is not None
    start = record.features.feature_start
    ids = torch.tensor([record.prompt_ids + record.output_ids])
    features, last_hidden = compute_features(reference, ids, engine.speculator.feature_layers)
    worst = 0.0
    for name, expected in (("features", features[0]), ("last_hidden", last_hidden[0])):
        rows = min(len(found[name]), len(expected) - start)
        assert rows >= len(expected) - start - 1
        wanted = expected[start : start + rows]
        error = (found[name][:rows] - wanted).abs().amax(1) / wanted.abs().amax(1)
        worst = max(worst, float(error.max()))
    return worst


def test_features_of_batched_requests_equal_fresh_forwards(
    engine: Engine, reference: PreTrainedModel
) -> None:
    """Requests side by side, some accepted and some rejected drafts each: every row is its own request's."""
    prompts = [engine.prompt_ids(text) for text in PROMPTS[:8]]
    plan = RequestPlan(tenant="batched", arm=Arm.TURBO, learn=True, features=True)
    answers = engine.generate(prompts, plan, max_tokens=40)
    records = engine.traces("batched")
    assert sorted(record.prompt_ids + record.output_ids for record in records) == sorted(
        prompt + answer for prompt, answer in zip(prompts, answers, strict=True)
    )
    for record in records:
        assert largest_error(engine, reference, record) <= TOLERANCE


def test_features_under_chunked_prefill(engine: Engine, reference: PreTrainedModel) -> None:
    """A prompt prefilled over several steps has a row for every position."""
    prompt = engine.prompt_ids(" ".join(PROMPTS))
    assert len(prompt) > 2 * MAX_BATCHED_TOKENS
    engine.generate(
        [prompt], RequestPlan(tenant="chunked", arm=Arm.TURBO, learn=True, features=True), max_tokens=24
    )
    (record,) = engine.traces("chunked")
    assert record.features is not None
    assert record.features.feature_start == 0
    assert largest_error(engine, reference, record) <= TOLERANCE


def test_features_after_a_prefix_cache_hit_begin_where_the_hit_ends(
    engine: Engine, reference: PreTrainedModel
) -> None:
    """With a cached prefix the record states feature_start, and the rows from there on are right."""
    prefix = engine.prompt_ids(" ".join(PROMPTS * 2))  # the CPU caches blocks of 128 tokens
    params = SamplingParams(
        temperature=0,
        max_tokens=16,
        extra_args=RequestPlan(tenant="cached", arm=Arm.TURBO, learn=True, features=True).to_extra_args(),
    )
    salt = uuid.uuid4().hex
    for _ in range(2):
        engine.llm.generate({"prompt_token_ids": prefix, "cache_salt": salt}, params, use_tqdm=False)
    first, second = sorted(engine.traces("cached"), key=lambda record: record.created_at)
    assert first.features is not None
    assert second.features is not None
    assert first.features.feature_start == 0
    assert 0 < second.features.feature_start < len(prefix)
    for record in (first, second):
        assert largest_error(engine, reference, record) <= TOLERANCE


def test_trace_accounts_for_every_output_token(engine: Engine) -> None:
    """The prefill's token and what each verify step emitted are the answer; rejected drafts are kept."""
    prompts = [engine.prompt_ids(text) for text in PROMPTS[:4]]
    # Drafting in every step, so that every token but the first belongs to a verify step.
    plan = RequestPlan(tenant="accounted", arm=Arm.TURBO, learn=True, fixed=True)
    before = engine.counts("accounted", Arm.TURBO)
    engine.generate(prompts, plan, max_tokens=60)
    records = engine.traces("accounted")
    counted = engine.counts("accounted", Arm.TURBO) - before
    assert counted.verify_steps == sum(len(record.steps) for record in records)
    assert counted.accepted == sum(step.accepted for record in records for step in record.steps)
    for record in records:
        position = 1
        for step in record.steps:
            assert (step.arm, step.version) == (Arm.TURBO, 0)
            assert step.output_offset == position
            assert len(step.confidences) == len(step.drafted) <= 4
            emitted = record.output_ids[position : position + step.accepted + 1]
            kept = min(step.accepted, len(emitted))  # the length limit may cut the last step
            assert step.drafted[:kept] == emitted[:kept]
            if step.accepted < len(step.drafted) and len(emitted) == step.accepted + 1:
                assert step.drafted[step.accepted] != emitted[-1]
            position += len(emitted)
        assert position == len(record.output_ids)


def test_nothing_is_captured_without_consent(engine: Engine) -> None:
    """A tenant without `learn` leaves no trace in the log or the store."""
    engine.generate(
        [engine.prompt_ids("Hello")],
        RequestPlan(tenant="private", arm=Arm.TURBO, learn=False, features=True),
        max_tokens=8,
    )
    assert engine.traces("private") == []
    assert not (engine.home / "store" / "private").exists()
