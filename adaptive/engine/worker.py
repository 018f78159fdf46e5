"""The CPU worker: our runner in place of vLLM's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

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
from adaptive.engine.rpc import AdapterRpc
from adaptive.engine.runner import AdaptiveCPUModelRunner
from adaptive.engine.speculation import Speculation
from adaptive.engine.state import EngineState
from adaptive.engine.suffix import warm_up
from adaptive.speculator.config import SpeculatorConfig

PRIORS: Final = Path(__file__).with_name("priors.json")
"""The calibrations that every tenant starts from."""


class AdaptiveCPUWorker(AdapterRpc, CPUWorker):
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
