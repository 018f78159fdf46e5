"""The CPU worker: our runner in place of vLLM's, and the RPC methods the endpoint's agent calls.

vLLM runs RPCs between two steps, so whatever a method does is atomic for the requests in flight; methods that
take time (reading a file) only start work in the background.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import vllm.v1.worker.cpu_worker as vllm_cpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker

from adaptive import log
from adaptive.engine import compatibility
from adaptive.engine.calibration import Calibration, Priors
from adaptive.engine.capture import TracePublisher
from adaptive.engine.choice import DraftChoice
from adaptive.engine.config import EngineConfig
from adaptive.engine.ngram import NgramDrafter
from adaptive.engine.profile import profile
from adaptive.engine.runner import AdaptiveCPUModelRunner
from adaptive.engine.slots import NoFreeSlotError
from adaptive.engine.speculation import Speculation
from adaptive.engine.state import EngineState
from adaptive.engine.suffix import warm_up
from adaptive.speculator.adapter import AdapterError
from adaptive.speculator.config import SpeculatorConfig

PRIORS: Final = Path(__file__).with_name("priors.json")
"""The calibrations that every tenant starts from."""


class AdaptiveCPUWorker(CPUWorker):
    """One CPU engine process with adapters and capture."""

    model_runner: AdaptiveCPUModelRunner

    def init_device(self) -> None:
        """Build the device environment with our runner, which the stock worker names by a module global."""
        compatibility.check(members=compatibility.MEMBERS)
        stock = vllm_cpu_worker.CPUModelRunner
        vllm_cpu_worker.CPUModelRunner = AdaptiveCPUModelRunner
        try:
            super().init_device()
        finally:
            vllm_cpu_worker.CPUModelRunner = stock

    def compile_or_warm_up_model(self) -> Any:
        """Start serving state only after warm-up, so that nothing of it is counted or captured."""
        times = super().compile_or_warm_up_model()
        config = EngineConfig.from_additional_config(self.vllm_config.additional_config)
        if config is None:
            raise ValueError(
                "additional_config has no 'adaptive' section: start the engine with `adaptive serve`, or "
                "pass EngineConfig.to_additional_config()"
            )
        log.configure("engine")
        warm_up()
        speculative = self.vllm_config.speculative_config
        buffers = self.model_runner.drafter.model.adapters
        assert buffers is not None
        self.model_runner.state = EngineState(
            config,
            buffers,
            SpeculatorConfig.from_directory(Path(speculative.draft_model_config.model)),
            Speculation(
                config,
                speculative.num_speculative_tokens,
                profile(self.model_runner),
                DraftChoice(NgramDrafter(), Calibration(Priors.load(PRIORS))),
            ),
            TracePublisher(config, config.capture) if config.capture is not None else None,
        )
        return times

    def shutdown(self) -> None:
        """Flush the traces, then stop."""
        state = getattr(getattr(self, "model_runner", None), "state", None)
        if state is not None and state.publisher is not None:
            for request_id in list(state.requests):
                state.finish(request_id)
            state.publisher.close()
        super().shutdown()

    # -- RPC methods, called between two steps -------------------------------------------------------------

    @property
    def _state(self) -> EngineState:
        assert self.model_runner.state is not None, "the engine is still warming up"
        return self.model_runner.state

    def stage_adapter(self, tenant: str, version: int, path: str) -> None:
        """Start reading and checking an adapter file in the background."""
        self._state.staged.stage(tenant, version, path)

    def staged_adapter(self, tenant: str, version: int) -> tuple[str, str]:
        """("absent" | "loading" | "ready" | "refused", why)."""
        return self._state.staged.state(tenant, version)

    def unstage_adapter(self, tenant: str) -> None:
        """Drop what is staged for a tenant."""
        self._state.staged.forget(tenant)

    def placeable(self, tenant: str) -> bool:
        """Whether a commit for this tenant would find a slot now."""
        return self._state.slots.placeable(tenant)

    def commit_adapter(
        self,
        tenant: str,
        version: int,
        weight: float,
        move: bool = False,
        evict: bool = True,
        canary: bool = False,
    ) -> dict[str, Any]:
        """Put a staged adapter in service, or on trial beside the champion.

        Returns:
            {"slot", "pause_ms", "evicted"}, or {"error", "retry"} with the engine unchanged; "retry" tells
            whether the same call may succeed later.
        """
        try:
            return self._state.commit(tenant, version, weight, move=move, evict=evict, canary=canary)
        except (AdapterError, NoFreeSlotError) as error:
            return {"error": str(error), "retry": isinstance(error, NoFreeSlotError)}

    def retire_adapter(self, tenant: str, move: bool = False, canary: bool = False) -> None:
        """Send a tenant back to turbo, or end the trial of its challenger."""
        self._state.retire(tenant, move=move, canary=canary)

    def set_policy(self, tenant: str, weight: float, canary: bool = False) -> None:
        """Change the weight of a tenant's resident adapter."""
        self._state.set_weight(tenant, weight, canary=canary)

    def set_consent(self, tenant: str, learn: bool, share: bool) -> int:
        """Follow a tenant's consent, for requests in flight too; returns the records dropped."""
        return self._state.set_consent(tenant, learn=learn, share=share)

    def forget_tenant(self, tenant: str, generation: int) -> dict[str, int]:
        """Drop everything of a tenant erased up to a generation; returns what that was, by kind."""
        return self._state.forget_tenant(tenant, generation)

    def flush_traces(self, timeout: float) -> bool:
        """Wait until finished requests' traces are in the log; blocks the engine, for tests and shutdown."""
        publisher = self._state.publisher
        return publisher is None or publisher.flush(timeout)

    def adapter_info(self) -> dict[str, Any]:
        """Slots, counters, swap pauses and capture statistics."""
        return self._state.info()

    def adapter_weights_finite(self) -> bool:
        """Whether every resident adapter value is finite (a check for operators and tests)."""
        return all(bool(torch.isfinite(buffer).all()) for buffer in self._state.buffers.buffers())
