"""vLLM's EAGLE-3 speculator of Model Runner V2 with an adapter slot per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator

from adaptive.engine.v2 import low_rank

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from adaptive.engine.v2.buffers import GraphAdapterBuffers


class AdaptiveEagleSpeculator(EagleSpeculator):
    """Tells the draft model's adapters which slot each row uses, before every graph is replayed.

    The tensors that graphs read are static; only their contents change, in stream order.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """Allocate the slots of the runner's requests."""
        super().__init__(vllm_config, device)
        self.request_slots = torch.zeros(self.max_num_reqs, dtype=torch.int32, device=device)

    @property
    def adapters(self) -> GraphAdapterBuffers:
        """The draft model's buffers."""
        adapters: Any = self.model.adapters
        assert adapters is not None, "additional_config has no 'adaptive' section"
        return adapters

    def on_prefill_begin(self, num_reqs: int) -> None:
        """First pass: only a request's last row is sampled from, the others write keys and values."""
        low_rank.route_last_rows(
            self.adapters.row_slots, self.request_slots, self.idx_mapping, self.last_token_indices, num_reqs
        )

    def on_multi_step_decode_begin(self, num_reqs: int) -> None:
        """Later passes have one row a request."""
        low_rank.route_each_row(self.adapters.row_slots, self.request_slots, self.idx_mapping, num_reqs)
