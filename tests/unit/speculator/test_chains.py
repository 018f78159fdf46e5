"""Free-running chains are what a literal server drafts, wrong tokens included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from adaptive.speculator.chains import draft_chains

from .server import draft_from

if TYPE_CHECKING:
    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.head import Eagle3Head
    from adaptive.speculator.sequences import TracedSequence


@pytest.mark.parametrize("adapted", [False, True])
def test_chains_equal_a_literal_server(
    head: Eagle3Head, adapter: Adapter, sequences: list[TracedSequence], adapted: bool
) -> None:
    """Tokens and confidences agree with drafting one token at a time from every slot."""
    used = adapter if adapted else None
    chains = draft_chains(head, used, sequences, 3)
    for item, chain in zip(sequences, chains, strict=True):
        assert chain.tokens.shape == (item.queries, 3)
        for row in range(item.queries):
            tokens, hiddens = draft_from(head, used, item, item.first_query + row, 3, forced=False)
            assert chain.tokens[row].tolist() == tokens
            top = torch.stack([head.lm_head(hidden).softmax(-1).max() for hidden in hiddens])
            torch.testing.assert_close(chain.log_odds[row].double(), torch.logit(top), atol=1e-4, rtol=1e-4)
