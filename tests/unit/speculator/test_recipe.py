"""The turbo recipe's own target, generator and packing agree with the plain ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from adaptive.speculator.target import compute_features, load_target
from deploy.models.generate import Job, Text, generate
from deploy.models.jobs import fit, load_jobs, save_jobs
from deploy.models.llama import Llama, Runner
from deploy.models.prompts import PromptSource
from deploy.models.rows import FeatureStore, pack

if TYPE_CHECKING:
    from pathlib import Path

END = 2
LAYERS = (1, 2, 3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target of four layers, saved as transformers saves it."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("target")
    shape = LlamaConfig(
        vocab_size=40, hidden_size=24, intermediate_size=32, num_hidden_layers=4, num_attention_heads=3,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, initializer_range=0.4,
        bos_token_id=1, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def runner(directory: Path) -> Runner:
    """The recipe's forward passes over that target."""
    return Runner(Llama.from_directory(directory, "cpu", torch.float32), compiled=False)


@pytest.fixture(scope="module")
def text(runner: Runner) -> Text:
    """Seven conversations through three rows; some have a second turn."""
    torch.manual_seed(0)
    jobs = [Job([1, 5 + i, 7], 12, 0.0 if i < 3 else 1.0, (9, 11) if i % 2 else ()) for i in range(7)]
    return generate(runner, jobs, rows=3, length=40, end=END, device="cpu", report=False)


def test_greedy_answers_are_transformers_greedy_answers(runner: Runner, directory: Path) -> None:
    """Rows that wait, finish and take the next job give each job the answer it would have alone."""
    model = load_target(directory)
    jobs = [Job([1, *range(4, 5 + i)], 6 + i, 0.0) for i in range(6)]
    made = generate(runner, jobs, rows=2, length=32, end=END, device="cpu", report=False)
    for i, job in enumerate(jobs):
        tokens = list(job.prompt)
        while len(tokens) < len(job.prompt) + job.limit:
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] == END:
                break
        assert made.tokens[i, : int(made.length[i])].tolist() == tokens
        assert made.sampled[i].nonzero().flatten().tolist() == list(range(len(job.prompt), len(tokens)))


def test_second_turn_follows_an_end_token(text: Text) -> None:
    """A follow-up question is read after the first answer's end token and is never marked as sampled."""
    for i in (1, 3, 5):
        tokens = text.tokens[i, : int(text.length[i])].tolist()
        at = next(t for t in range(3, len(tokens) - 2) if tokens[t : t + 3] == [END, 9, 11])
        assert not text.sampled[i, at + 1 : at + 3].any()
        assert text.sampled[i, at + 3 : len(tokens)].all()
        assert len(tokens) > at + 3


def test_rows_hold_every_draft_position_once(text: Text, runner: Runner) -> None:
    """Packed rows hold each draft position with its own token, label, features and the next state."""
    rows = pack(text, 48, "cpu", torch.Generator().manual_seed(0))
    store = FeatureStore(rows, torch.arange(len(rows.source)), runner, LAYERS, torch.ones(72))
    batch = store.batch(torch.arange(len(rows.source)))
    expected = {
        (tuple(text.tokens[i, : t + 3].tolist()))
        for i in range(7)
        for t in range(int(text.length[i]) - 2)
        if text.sampled[i, t + 1] and text.sampled[i, t + 2]
    }
    seen = set()
    for b, q in (batch.span >= 0).nonzero().tolist():
        t = int(batch.positions[b, q])
        history = rows.source[b, q - t : q + 1].tolist()
        assert rows.segment[b, q - t : q + 1].min() == rows.segment[b, q - t : q + 1].max()
        seen.add((*history, int(batch.token_ids[b, q]), int(batch.labels[b, q])))
        alone = torch.tensor([[*history, int(batch.token_ids[b, q])]])
        positions = torch.arange(t + 2)[None]
        features, last = runner.features(alone, positions, torch.zeros_like(alone), LAYERS)
        torch.testing.assert_close(batch.features[b, q], features[0, t], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(batch.teacher_hidden[b, q], last[0, t + 1], rtol=1e-4, atol=1e-4)
    assert seen == expected


def test_features_are_transformers_features(runner: Runner, directory: Path) -> None:
    """Packed forward passes give each segment what transformers computes for it alone."""
    ids = torch.randint(3, 40, (1, 11), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    segment = torch.tensor([[0] * 4 + [1] * 7])
    features, last = runner.features(ids, positions, segment, LAYERS)
    model = load_target(directory)
    for part in (slice(0, 4), slice(4, 11)):
        expected, expected_last = compute_features(model, ids[:, part], LAYERS)
        torch.testing.assert_close(features[:, part], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(last[:, part], expected_last, rtol=1e-4, atol=1e-4)


def test_jobs_round_trip_and_fit(tmp_path: Path) -> None:
    """Jobs survive their file, and fitted conversations fill a row in halves or whole."""
    jobs = [Job([1, 2, 3], 256, 0.5, []), Job([4], 256, 0.25, [5, 6])]
    save_jobs(tmp_path / "jobs.safetensors", {"train": jobs, "evaluate.broad": jobs[:1]})
    assert load_jobs(tmp_path / "jobs.safetensors") == {"train": jobs, "evaluate.broad": jobs[:1]}
    one, two = (fit(job, 512) for job in jobs)
    assert len(one.prompt) + one.limit == 256
    assert len(two.prompt) + len(two.follow_up) + 2 * two.limit <= 504


def test_held_out_prompts_share_no_question_with_training() -> None:
    """No held-out question is ever asked in training, and prompts are the same for the same seed."""
    train = PromptSource(1).draw(3000)
    assert train == PromptSource(1).draw(3000)
    asked = {prompt.question for prompt in train}
    assert not asked & {prompt.question for prompt in PromptSource(2, held_out=True).draw(1000)}
