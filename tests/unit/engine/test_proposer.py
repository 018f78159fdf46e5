"""Drafting row by row, without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from adaptive.engine.adapters import AdapterBuffers
from adaptive.engine.draft import AdaptiveEagle3LlamaForCausalLM
from adaptive.engine.proposer import AdaptiveProposer


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


def test_confidences_are_top_log_odds_per_request_and_position(proposer: AdaptiveProposer) -> None:
    """log(p / (1 - p)) of the most likely draft token, rows per request, columns in draft order."""
    proposer.prepare((0, 1))
    logits = [
        torch.tensor([[0.0, 5.0, 1.0], [3.0, 0.0, 1.0]]),
        torch.tensor([[0.0, 0.1, 0.2], [9.0, 0.0, 1.0]]),
    ]
    for step in logits:
        proposer._sample_draft_tokens(step, None)
    top = torch.stack([step.softmax(-1).max(-1).values for step in logits], dim=1)
    expected = torch.log(top / (1 - top))
    torch.testing.assert_close(torch.tensor(proposer.confidences()), expected, rtol=1e-4, atol=1e-4)


def test_certain_drafts_have_finite_confidence(proposer: AdaptiveProposer) -> None:
    """A probability of one would have infinite log-odds; traces carry at most 20."""
    proposer.prepare((0,))
    proposer._sample_draft_tokens(torch.tensor([[1000.0, 0.0, 0.0]]), None)
    assert proposer.confidences() == [[20.0]]


def test_nothing_drafted_means_no_confidences(proposer: AdaptiveProposer) -> None:
    """A step without a drafter pass leaves an empty list per request, not the last step's values."""
    proposer.prepare((0,))
    proposer._sample_draft_tokens(torch.tensor([[1.0, 0.0, 0.0]]), None)
    proposer.prepare((0, 0))
    assert proposer.confidences() == [[], []]


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
