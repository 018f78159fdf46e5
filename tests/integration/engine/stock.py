"""A stock vLLM engine without the plugin, in a process of its own.

`python -m tests.integration.engine.stock MODEL` reads [[prompt ids, sampling parameters], ...] as JSON from
its standard input and writes {"outputs": ids of each, "tau": acceptance length} as its last line of output.
It speculates where MODEL is a drafter in the speculators format, which names its target; tau is 1 elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[3]


def generate(model: Path, requests: Sequence[tuple[list[int], dict[str, Any]]]) -> list[list[int]]:
    """Output ids of each request, all in one batch."""
    outputs: list[list[int]] = _run(model, requests)["outputs"]
    return outputs


def speculate(
    drafter: Path, requests: Sequence[tuple[list[int], dict[str, Any]]]
) -> tuple[list[list[int]], float]:
    """Output ids of each request and the acceptance length, with a drafter in the speculators format."""
    found = _run(drafter, requests)
    return found["outputs"], found["tau"]


def _run(model: Path, requests: Sequence[tuple[list[int], dict[str, Any]]]) -> Any:
    environment = {
        **os.environ,
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.engine.stock", str(model)],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _main(model: str) -> None:
    from vllm import LLM, SamplingParams  # noqa: PLC0415  only in the process of its own

    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        kv_cache_memory_bytes=1 << 29,
        seed=0,
        disable_log_stats=False,
    )
    requests = json.load(sys.stdin)
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids, _ in requests],
        [SamplingParams(**_parameters(given)) for _, given in requests],
        use_tqdm=False,
    )
    counted = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    steps = counted.get("vllm:spec_decode_num_drafts", 0)
    accepted = counted.get("vllm:spec_decode_num_accepted_tokens", 0)
    found = {
        "outputs": [list(output.outputs[0].token_ids) for output in outputs],
        "tau": 1 + accepted / max(steps, 1),
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _parameters(given: dict[str, Any]) -> dict[str, Any]:
    # JSON has no integer keys.
    bias = given.get("logit_bias")
    return given | ({"logit_bias": {int(token): value for token, value in bias.items()}} if bias else {})


if __name__ == "__main__":
    _main(sys.argv[1])
