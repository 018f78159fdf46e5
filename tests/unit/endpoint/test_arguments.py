"""From settings to vLLM's command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from adaptive.endpoint.arguments import ArgumentError, engine_config, vllm_arguments
from adaptive.endpoint.identity import Identity, identify
from adaptive.engine.config import CaptureConfig, EngineConfig
from adaptive.settings import Settings
from adaptive.up.roles import standard_roles

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def settings(target: Path, turbo: Path, tmp_path: Path) -> Settings:
    """Settings that differ from the defaults."""
    return Settings(
        home=tmp_path / "home",
        model=str(target),
        turbo=turbo,
        host="127.0.0.1",
        endpoint_port=9001,
        dtype="float32",
        kv_cache_gib=0.5,
        engine_lookahead=8,
        lookahead=3,
        slots=5,
        rank=16,
    )


@pytest.fixture
def identity(settings: Settings) -> Identity:
    """What they serve."""
    return identify(settings)


def value(arguments: list[str], flag: str) -> str:
    """The value of a flag that is there once."""
    assert arguments.count(flag) == 1
    return arguments[arguments.index(flag) + 1]


def test_settings_become_flags(settings: Settings, identity: Identity) -> None:
    """Model, port, dtype, cache and the speculative config are the settings'."""
    arguments = vllm_arguments(settings, identity, [])
    assert value(arguments, "--model") == str(identity.target)
    assert value(arguments, "--served-model-name") == "tiny"
    assert value(arguments, "--port") == "9001"
    assert value(arguments, "--dtype") == "float32"
    assert value(arguments, "--kv-cache-memory-bytes") == str(1 << 29)
    assert json.loads(value(arguments, "--speculative-config")) == {
        "method": "eagle3",
        "model": str(identity.turbo),
        "num_speculative_tokens": 8,
    }
    assert value(arguments, "--worker-cls") == "adaptive.engine.worker.AdaptiveCPUWorker"
    assert value(arguments, "--scheduler-cls") == "adaptive.engine.scheduler.AdaptiveScheduler"


def test_the_engine_reads_what_the_endpoint_writes(settings: Settings, identity: Identity) -> None:
    """The plugin's section survives the command line."""
    carried = json.loads(value(vllm_arguments(settings, identity, []), "--additional-config"))
    assert EngineConfig.from_additional_config(carried) == EngineConfig(
        slots=5,
        rank=16,
        lookahead=3,
        target_sha256=identity.target_sha256,
        turbo_sha256=identity.turbo_sha256,
        tokenizer_sha256=identity.tokenizer_sha256,
        feature_layers=(2, 5, 7),
        capture=CaptureConfig(
            settings.resolved_log_url, settings.resolved_store_url, settings.capture_queue_bytes
        ),
        slot_residence_seconds=5.0,
    )


def test_without_capture_the_engine_knows_no_log(settings: Settings, identity: Identity) -> None:
    """What is not captured has nowhere to go."""
    assert engine_config(settings.model_copy(update={"capture": False}), identity).capture is None


def test_requests_in_flight_end_before_the_supervisor_kills(settings: Settings, identity: Identity) -> None:
    """VLLM drains for as long as it is told, 0 s by default; what is left a few seconds later is killed."""
    seconds = int(value(vllm_arguments(settings, identity, []), "--shutdown-timeout"))
    (serve,) = (role for role in standard_roles(settings) if role.name == "serve")
    assert 0 < seconds <= serve.drain_seconds - 5


def test_an_operators_flags_come_last(settings: Settings, identity: Identity) -> None:
    """Argparse takes the last value, so theirs wins."""
    extra = ["--max-num-seqs", "3", "--seed=5"]
    assert vllm_arguments(settings, identity, extra)[-3:] == extra


@pytest.mark.parametrize(
    "argument",
    [
        "--api-server-count",
        "--api-server-count=2",
        "--api_server_count=2",
        "--api-server-c",
        "-asc",
        "--worker-cls",
        "--worker_cls=mine.Worker",
        "--scheduler-cls=mine.Scheduler",
        "--additional-config",
        "--additional-config.adaptive.slots",
        "--additional_config.adaptive.slots=9",
        "--api-key=open",
        "--config",
        "--model",
        "--model=theirs",
        "--tokenizer",
        "--served-model-name",
        "--served_model_name=gpt",
        "--speculative-config",
        "--speculative-config.method=ngram",
        "-sc",
        "-sc.method",
        "--host=::",
        "--port",
        "--data-parallel-size=2",
        "-dp",
        "--headless",
        "--kv-transfer-config.kv_connector=x",
        "--enable-log-outputs",
    ],
)
def test_owned_flags_are_refused(settings: Settings, identity: Identity, argument: str) -> None:
    """However vLLM lets them be spelt; the message names the flag and the reason."""
    with pytest.raises(ArgumentError, match=r"^-\S+ cannot be passed: the endpoint sets it"):
        vllm_arguments(settings, identity, ["--seed", "1", argument, "2"])


@pytest.mark.parametrize(
    "argument",
    [
        *("--seed", "--config-format=hf", "--max_model_len", "-O3", "-", "--"),
        *("--model-impl=vllm", "--tokenizer-mode=slow", "--shutdown-timeout=5"),
    ],
)
def test_other_flags_pass(settings: Settings, identity: Identity, argument: str) -> None:
    """Only what would break tenants' accounts or the plugin is held back."""
    assert vllm_arguments(settings, identity, [argument])[-1] == argument


@pytest.mark.parametrize("model", ["worker-cls", "smollm2-135m", "2"])
def test_a_positional_model_is_refused(settings: Settings, identity: Identity, model: str) -> None:
    """`vllm serve MODEL` is `adaptive serve --model MODEL`; values of flags are no models."""
    with pytest.raises(ArgumentError, match="name the model with --model"):
        vllm_arguments(settings, identity, [model])
    assert vllm_arguments(settings, identity, ["--seed", model])[-1] == model


def test_coalescing_is_vllms_stream_interval(settings: Settings, identity: Identity) -> None:
    """Off unless an operator asks for it."""
    assert value(vllm_arguments(settings, identity, []), "--stream-interval") == "1"
    grouped = settings.model_copy(update={"stream_coalesce": 8})
    assert value(vllm_arguments(grouped, identity, []), "--stream-interval") == "8"
