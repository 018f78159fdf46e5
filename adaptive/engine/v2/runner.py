"""vLLM's Model Runner V2 with our speculator, and the requests' slots kept beside its own request states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import vllm.v1.worker.gpu.model_runner as vllm_model_runner
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from adaptive.engine.v2.speculator import AdaptiveEagleSpeculator

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu.states import RequestState

    from adaptive.engine.state import EngineState


def _our_speculator(
    vllm_config: VllmConfig, device: torch.device, _: RequestState
) -> AdaptiveEagleSpeculator:
    return AdaptiveEagleSpeculator(vllm_config, device)


class AdaptiveGPUModelRunner(GPUModelRunner):
    """Runs steps as vLLM does; requests draft with their tenant's resident adapter."""

    state: EngineState | None
    """None until warm-up is over."""
    speculator: AdaptiveEagleSpeculator

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """Build vLLM's runner, which names its speculator by a module global."""
        self.state = None
        stock = vllm_model_runner.init_speculator
        vllm_model_runner.init_speculator = _our_speculator
        try:
            super().__init__(vllm_config, device)
        finally:
            vllm_model_runner.init_speculator = stock

    def add_requests(self, scheduler_output: SchedulerOutput) -> None:
        """Admit the step's new requests; one that was preempted keeps its slot but has a new index."""
        super().add_requests(scheduler_output)
        if self.state is None or not scheduler_output.scheduled_new_reqs:
            return
        for new in scheduler_output.scheduled_new_reqs:
            self.state.begin(new.req_id, new.prompt_token_ids or (), new.sampling_params)
        self.refresh_slots()

    def finish_requests(self, scheduler_output: SchedulerOutput) -> None:
        """Release the slots of ended requests; a preempted one is still in flight."""
        super().finish_requests(scheduler_output)
        if self.state is not None:
            for request_id in sorted(scheduler_output.finished_req_ids):
                self.state.finish(request_id)

    def refresh_slots(self) -> None:
        """Copy every request's slot to the device in stream order, without waiting for steps in flight."""
        assert self.state is not None
        slots = torch.zeros(self.speculator.request_slots.shape, dtype=torch.int32, pin_memory=True)
        for request_id, index in self.req_states.req_id_to_index.items():
            request = self.state.requests.get(request_id)
            if request is not None:
                slots[index] = request.slot
        # A new pinned tensor each time: the allocator gives it out again only once the copy has been made.
        self.speculator.request_slots.copy_(slots, non_blocking=True)
