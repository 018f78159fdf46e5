"""Drafting row by row, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from vllm.v1.spec_decode.eagle import EagleProposer

from adaptive.engine.adapters import AdapterBuffers
from adaptive.engine.draft import AdaptiveEagle3LlamaForCausalLM
from adaptive.engine.proposer import AdaptiveProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Draft(torch.nn.Module):
    """A draft model whose logits are the hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = AdapterBuffers({"o_proj": (3, 3)}, 3, 2, torch.float32)
        self.draft_id_to_target_id = torch.tensor([10, 20, 30])

    def draft_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The input."""
        return hidden_states

    def to_target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """As the real one."""
        return AdaptiveEagle3LlamaForCausalLM.to_target_ids(self, draft_ids)  # type: ignore[arg-type]  # a stand-in


@pytest.fixture
def proposer() -> AdaptiveProposer:
    """A proposer that was never given an engine."""
    made = object.__new__(AdaptiveProposer)
    made.model = Draft()  # type: ignore[assignment]  # a stand-in
    return made


def test_drafts_are_greedy_and_in_target_ids(proposer: AdaptiveProposer) -> None:
    """d2t holds differences: draft id 1 of three is target id 1 + 20."""
    proposer.prepare((0, 0))
    ids, distribution = proposer._sample_draft_tokens(torch.tensor([[0.0, 5.0, 1.0], [3.0, 0.0, 1.0]]), None)
    assert ids.tolist() == [21, 10]
    assert distribution is None


def test_without_a_mapping_draft_ids_are_target_ids() -> None:
    """A head that drafts over the whole vocabulary has no d2t."""
    model = SimpleNamespace(draft_id_to_target_id=None)
    ids = torch.tensor([4, 2])
    assert AdaptiveEagle3LlamaForCausalLM.to_target_ids(model, ids) is ids  # type: ignore[arg-type]  # a stand-in


class Step:
    """Decides as it is told and keeps what the passes drafted."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.tokens: list[Sequence[int]] = []
        self.log_odds: list[Sequence[float]] = []

    def first(self, tokens: Sequence[int], log_odds: Sequence[float]) -> None:
        """Keep the first pass's drafts."""
        assert not self.tokens
        self.add(tokens, log_odds)

    def add(self, tokens: Sequence[int], log_odds: Sequence[float]) -> None:
        """Keep a later pass's."""
        self.tokens.append(tokens)
        self.log_odds.append(log_odds)

    def another(self) -> bool:
        """Whether fewer than the wanted number of passes have run."""
        return len(self.tokens) < self.wanted


@pytest.fixture
def drafting(proposer: AdaptiveProposer, monkeypatch: pytest.MonkeyPatch) -> Callable[[Step], torch.Tensor]:
    """Run vLLM's loop, made up, of five passes over two rows for a step."""
    passes = [torch.tensor([[0.0, 5.0, 1.0], [3.0, 0.0, 1.0]]) + 0.1 * number for number in range(5)]

    def propose(one: AdaptiveProposer) -> torch.Tensor:
        one._pass_started = 0.0
        ids = [one._sample_draft_tokens(passes[0], None)[0]]
        for logits in passes[1:]:
            one._update_positions_dependent_metadata()
            ids.append(one._sample_draft_tokens(logits, None)[0])
        return torch.stack(ids, dim=1)

    monkeypatch.setattr(EagleProposer, "propose", propose)
    monkeypatch.setattr(EagleProposer, "_update_positions_dependent_metadata", lambda *_: None)
    proposer.arange = torch.arange(8)

    def run(step: Step) -> torch.Tensor:
        proposer.prepare((0, 0), step)  # type: ignore[arg-type]  # a stand-in
        return proposer.propose()

    return run


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_passes_stop_when_no_row_wants_another(
    proposer: AdaptiveProposer, drafting: Callable[[Step], torch.Tensor], wanted: int
) -> None:
    """The loop really ends: no pass more is run, and the next step may run all again."""
    step = Step(wanted)
    drafting(step)
    assert len(step.tokens) == len(proposer.pass_seconds) == wanted
    full = Step(5)
    assert drafting(full).shape == (2, 5)
    assert full.tokens[0] == [21, 10]


def test_confidences_are_top_log_odds(drafting: Callable[[Step], torch.Tensor]) -> None:
    """log(p / (1 - p)) of the most likely draft token, per row."""
    step = Step(1)
    drafting(step)
    top = torch.tensor([[0.0, 5.0, 1.0], [3.0, 0.0, 1.0]]).softmax(-1).max(-1).values
    torch.testing.assert_close(
        torch.tensor(step.log_odds[0]), torch.log(top / (1 - top)), rtol=1e-4, atol=1e-4
    )


def test_certain_drafts_have_finite_confidence(proposer: AdaptiveProposer) -> None:
    """A probability of one would have infinite log-odds; traces carry at most 20."""
    step = Step(1)
    proposer.prepare((0,), step)  # type: ignore[arg-type]  # a stand-in
    proposer._pass_started = 0.0
    proposer._sample_draft_tokens(torch.tensor([[1000.0, 0.0, 0.0]]), None)
    assert step.log_odds == [[20.0]]


def test_rows_are_routed_to_their_slots(proposer: AdaptiveProposer) -> None:
    """Each pass routes the rows it samples from; turbo alone routes nothing."""
    adapters = proposer.model.adapters
    assert adapters is not None
    adapters.weight = [0.0, 1.0, 1.0]
    proposer.prepare((2, 0, 1))
    proposer._route(torch.tensor([4, 7, 9], dtype=torch.int32))
    assert adapters._grouped is not None
    assert adapters._grouped.rows.tolist() == [9, 4]
    assert adapters._grouped.groups == ((1, 0, 1), (2, 1, 2))
    proposer._route(None)
    assert adapters._grouped is None
    proposer.prepare((0, 0))
    proposer._route(torch.tensor([1, 2], dtype=torch.int32))
    assert adapters._grouped is None
