"""Whether the tokens a trace reports can be what the target said: its own last hidden states are the witness.

Labels and acceptance come from outside the learner. A trace whose drafts were reported as accepted without
being the target's would teach nothing, and would let the gate judge by text that the target never wrote. So
some of a request's tokens are held against the distribution of the hidden state before each. What a sampler
does not draw, over and over, is no answer of this target; a few odd tokens (a forced format, a penalty,
noise) are left to the gate, to which every arm loses them alike.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

import torch

from learners.features import LeftOutError, digest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from adaptive.contracts import TraceRecord
    from adaptive.speculator.sequences import TracedSequence

TOKENS_LOOKED_AT: Final = 32
"""Of a request, drawn by its text: enough to tell, and milliseconds to compute."""
TOKENS_LEAST: Final = 8
"""Fewer cannot tell."""
RARE: Final = math.log(1000)
"""Nats below the likeliest token from which one counts as rare."""
EXCESS_MOST: Final = 0.35
"""How much larger the share of rare tokens may be than their probability. Measured on four workloads at
temperatures 0, 0.7 and 1: 0.08 at most as the target wrote them, 0.22 at most with a fifth of the tokens at
random, 0.36 at least with four fifths."""
TEMPERATURE_LEAST: Final = 0.5
"""Rounding of hidden states must not look like surprise at temperatures near 0."""


class Plausibility:
    """Checks requests against one target.

    Args:
        target_rows: [D, H], the target's LM head for the draft vocabulary, in draft order.
        draft_token_ids: int64 [D], the tokens of those rows.
    """

    def __init__(self, target_rows: Tensor, draft_token_ids: Tensor) -> None:
        self._rows: Final = target_rows
        self._index: Final = {token: index for index, token in enumerate(draft_token_ids.tolist())}

    def check(self, records: Sequence[TraceRecord], sequence: TracedSequence) -> None:
        """Accept a request or say why not.

        Args:
            records: Its segments, in order.
            sequence: What they were joined to.

        Raises:
            LeftOutError: `contradictory`, drafts count as accepted that are not in the output; `implausible`,
                most of the output cannot come from these hidden states.
        """
        for record in records:
            for step in record.steps:
                emitted = record.output_ids[step.output_offset : step.output_offset + step.accepted]
                if any(draft != token for draft, token in zip(step.drafted, emitted, strict=False)):
                    raise LeftOutError(
                        "contradictory", f"trace {record.trace_id} accepts drafts that its output lacks"
                    )
        excess = self.excess(sequence, records[0].sampling.temperature)
        if excess > EXCESS_MOST:
            raise LeftOutError(
                "implausible", f"{excess:.0%} more tokens than expected are rare in the target's distribution"
            )

    @torch.inference_mode()
    def excess(self, sequence: TracedSequence, temperature: float) -> float:
        """Share of rare tokens less the share that a sampler at `temperature` draws, or 0."""
        ids = sequence.token_ids.tolist()
        known = [
            at
            for at in range(max(sequence.answer_start, sequence.feature_start + 1), len(ids))
            if ids[at] in self._index
        ]
        if len(known) < TOKENS_LEAST:
            return 0.0
        draw = random.Random(digest_of(sequence))  # noqa: S311  # the same tokens every time
        places = draw.sample(known, min(TOKENS_LOOKED_AT, len(known)))
        hidden = sequence.last_hidden[[at - 1 - sequence.feature_start for at in places]]
        logits = (hidden.to(self._rows) @ self._rows.T).float() / max(temperature, TEMPERATURE_LEAST)
        below = logits.amax(-1, keepdim=True) - logits
        drawn = below[range(len(places)), [self._index[ids[at]] for at in places]]
        expected = (torch.softmax(logits, -1) * (below > RARE)).sum(-1)
        return float((drawn > RARE).float().mean() - expected.mean())
