"""The CUDA worker: our runner in place of vLLM's Model Runner V2, with the RPC methods of the CPU one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.worker.gpu_worker import Worker

from adaptive import log
from adaptive.engine import compatibility
from adaptive.engine.config import EngineConfig
from adaptive.engine.rpc import AdapterRpc
from adaptive.engine.speculation import Speculation
from adaptive.engine.state import EngineState
from adaptive.engine.v2.runner import AdaptiveGPUModelRunner
from adaptive.speculator.config import SpeculatorConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.engine.state import ActiveRequest


class StaticSpeculation(Speculation):
    """Every request drafts with the model up to K: choosing between arms needs the V1 host loop."""

    def __init__(self, config: EngineConfig, most: int) -> None:
        """Only the cap is used."""
        self.config = config
        self.most = most

    def begin(
        self, request_id: str, request: ActiveRequest, prompt_ids: Sequence[int], temperature: float
    ) -> None:
        """Nothing is chosen per request."""

    def end(self, request_id: str, request: ActiveRequest) -> None:
        """Nothing was kept."""

    def forget(self, tenant: str) -> None:
        """Nothing is kept per tenant."""

    def info(self) -> dict[str, Any]:
        """Nothing to report."""
        return {}


class AdaptiveGPUWorker(AdapterRpc, Worker):
    """One CUDA engine process with adapters; tensor parallel size 1."""

    model_runner: AdaptiveGPUModelRunner

    def _make_model_runner(self) -> Any:
        """Build our runner.

        Raises:
            ValueError: the engine would run without Model Runner V2, or the buffers would need sharding.
        """
        compatibility.check(compatibility.V2_SYMBOLS, compatibility.V2_MEMBERS)
        if not self.use_v2_model_runner:
            raise ValueError("adapters on CUDA need Model Runner V2: unset VLLM_USE_V2_MODEL_RUNNER")
        parallel = self.vllm_config.parallel_config
        if parallel.tensor_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
            raise ValueError(
                "adapters on CUDA are not sharded yet: set tensor and pipeline parallel size to 1 and "
                "run one engine per GPU"
            )
        return AdaptiveGPUModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> Any:
        """Start serving state only after warm-up and graph capture."""
        times = super().compile_or_warm_up_model()
        config = EngineConfig.from_additional_config(self.vllm_config.additional_config)
        if config is None:
            raise ValueError(
                "additional_config has no 'adaptive' section: pass EngineConfig.to_additional_config()"
            )
        if config.capture is not None:
            raise ValueError("capture is not built for Model Runner V2 yet: start the engine without it")
        log.configure("engine")
        speculative = self.vllm_config.speculative_config
        self.model_runner.state = EngineState(
            config,
            self.model_runner.speculator.adapters,
            SpeculatorConfig.from_directory(Path(speculative.draft_model_config.model)),
            StaticSpeculation(config, speculative.num_speculative_tokens),
            None,
        )
        return times

    def commit_adapter(
        self,
        tenant: str,
        version: int,
        weight: float,
        move: bool = False,
        evict: bool = True,
        canary: bool = False,
    ) -> dict[str, Any]:
        """Commit as every worker does, then send the moved requests' slots to the device."""
        result = super().commit_adapter(tenant, version, weight, move=move, evict=evict, canary=canary)
        if move:
            self.model_runner.refresh_slots()
        return result

    def retire_adapter(self, tenant: str, move: bool = False, canary: bool = False) -> None:
        """Retire as every worker does, then send the moved requests' slots to the device."""
        super().retire_adapter(tenant, move=move, canary=canary)
        if move:
            self.model_runner.refresh_slots()

    def forget_tenant(self, tenant: str, generation: int) -> dict[str, int]:
        """Forget as every worker does; requests in flight go on with turbo."""
        dropped = super().forget_tenant(tenant, generation)
        self.model_runner.refresh_slots()
        return dropped
